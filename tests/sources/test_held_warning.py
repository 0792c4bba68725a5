"""A stream function that keeps records and has no state loses them at a kill: one warning says so."""

import logging
from itertools import islice

import pytest

from streamdata import MergedDataset
from tests.streams import Numbers


def carrying(records):
    """Packs of eight values, from records of three."""
    carry = []
    for record in records:
        carry.extend([record["value"]] * 3)
        while len(carry) >= 8:
            yield {"row": carry[:8]}
            carry = carry[8:]


def shuffling(records):
    """Through a buffer of four."""
    buffer = []
    for record in records:
        buffer.append(record)
        if len(buffer) == 4:
            yield buffer.pop(0)
    yield from buffer


def in_pairs(records):
    """Two of each, with nothing left."""
    pair = []
    for record in records:
        pair.append(record["value"])
        if len(pair) == 2:
            yield {"pair": pair}
            pair = []


def unchanged(records):
    """One of each, which leaves the last in its variable."""
    for record in records:
        values = [record["value"]]
        yield {"value": values}


class Carrying:
    """The first, with its rest in an attribute."""

    def __call__(self, records):
        self.rest = []
        for record in records:
            self.rest.append(record)
            if len(self.rest) > 2:
                yield self.rest.pop(0)


class Stateful(Carrying):
    """It says what it holds."""

    def state_dict(self):
        """Records to be given again."""
        return {"rewind": len(getattr(self, "rest", ()))}

    def load_state_dict(self, state):
        """Nothing else."""


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    """As in a new process."""
    monkeypatch.setattr("streamdata.sources.functions.process_functions._said_that_it_holds", set())


def warned(caplog, top=None, **functions):
    """What is said of a stream with these functions."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        list(islice(iter(MergedDataset([Numbers("a", 40, **functions)], customized_yield_fn=top)), 6))
    return [record.getMessage() for record in caplog.records if "load_state_dict" in record.getMessage()]


@pytest.mark.parametrize(
    ("function", "variable"),
    [(carrying, "carry of carrying"), (shuffling, "buffer of shuffling"), (Carrying(), "rest of __call__")],
    ids=["carry", "buffer", "attribute"],
)
@pytest.mark.parametrize("role", ["process_fn", "top"])
def test_a_function_that_holds_is_named(caplog, role, function, variable):
    """Once in a process, with the variable; a mixture's function too."""
    (message,) = warned(caplog, **{role: function})
    assert variable in message
    assert ("customized_yield_fn" if role == "top" else "process_fn") in message
    assert warned(caplog, **{role: function}) == []


@pytest.mark.parametrize("function", [in_pairs, unchanged, Stateful()], ids=["pairs", "one", "stateful"])
@pytest.mark.parametrize("role", ["process_fn", "top"])
def test_a_function_that_holds_nothing_is_not(caplog, role, function):
    """Its temporary variables do not count, nor what it gives account of."""
    assert warned(caplog, **{role: function}) == []


def test_one_of_a_list_is_named(caplog):
    """The last one, which pulls through the first."""
    (message,) = warned(caplog, process_fn=[unchanged, shuffling])
    assert "buffer of shuffling" in message
