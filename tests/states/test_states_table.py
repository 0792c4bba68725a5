"""States as a table: to whoever reads them, the flat dict and nothing else."""

import copy
import json
import pickle
import timeit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdata import StateError
from streamdata.states.headers import FORMAT
from streamdata.states.table import LoadedStates, as_dicts, empty_rows, table_of
from tests.cpu import cpu_within
from tests.streams import signed, through_json

COUNTS = st.integers(0, 2**53 - 1)
POSITIVE = st.integers(1, 2**53 - 1)
SIGNED = st.integers(1 - 2**53, 2**53 - 1)
COSTS = st.floats(0, 2**60, exclude_min=True)
REQUIRED = {
    "draws": COUNTS,
    "clock": st.floats(-(2.0**62), 2.0**62),
    "epoch": COUNTS,
    "window": SIGNED,
    "taken": COUNTS,
}
OPTIONAL = dict.fromkeys(("output", "given", "dropped", "bad", "skipped", "records", "batches"), POSITIVE) | {
    "pulled": st.tuples(COUNTS, SIGNED, COUNTS, COUNTS).map(list),
    "cost": COSTS,
    "function": st.dictionaries(st.text(max_size=3), st.integers(-(2**200), 2**200) | st.text(max_size=3), min_size=1),
}
CURSORS = st.fixed_dictionaries(REQUIRED, optional=OPTIONAL)
SMALL = st.integers(0, 3)
PATHS = st.sampled_from(["", "a", "b/with/slashes", "mix.a", "ü"])
KEYS = st.tuples(SMALL, SMALL, SMALL, SMALL, PATHS).map(lambda parts: "cursor/" + "/".join(map(str, parts)))
HEADERS = st.integers(1, 9).map(lambda size: signed({"format": FORMAT, "dp_size": size, "deal": 0}))
OTHERS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("worker/0/0/1", "worker/1/0/2", "idle/0/3", "deal/2"), st.integers(0, 9))
    | {"generation/0": HEADERS},
)
STATES = st.tuples(st.dictionaries(KEYS, CURSORS, max_size=8), OTHERS).map(lambda two: two[0] | two[1])


def typed(states):
    """Comparable with the types of all numbers."""
    return {
        key: repr(value) if not isinstance(value, dict) else sorted(map(repr, value.items()))
        for key, value in states.items()
    }


def loaded(states):
    """As a trainer has them after it has loaded them."""
    return LoadedStates(table_of(states))


@settings(max_examples=15)
@given(STATES, STATES, STATES)
def test_a_table_is_the_flat_dict(states, first, second):
    """Whatever is loaded, written over it, turned into a table again and written over: keys, values and types."""
    held, want = loaded(states), dict(states)
    for written in (first, second):
        held.update(written)
        want |= written
        assert typed(dict(held)) == typed(dict(held.items())) == typed(table_of(held).as_dict()) == typed(want)
        assert len(held) == len(want)
        assert set(held) == set(want)
        assert all(key in held for key in want)
        assert held == want
        held = loaded(held)
        assert table_of(held.loaded) is held.loaded
        assert typed(dict(pickle.loads(pickle.dumps(held)))) == typed(want)


@settings(max_examples=20)
@given(STATES, st.randoms())
def test_the_digest_is_of_what_is_held(states, random):
    """Whatever sequence it came in; another value is another digest."""
    items = list(states.items())
    random.shuffle(items)
    half = len(items) // 2
    pieces = loaded(dict(items[:half]))
    pieces.update(items[half:])
    assert table_of(pieces).digest == table_of(states).digest
    for key, value in states.items():
        if key.startswith("cursor/"):
            other = {**states, key: {**value, "draws": value["draws"] ^ 1}}
            assert table_of(other).digest != table_of(states).digest


@given(STATES, SMALL, SMALL)
def test_a_ranks_own_entries_are_found(states, rank, since):
    """All of the rank from a generation on, and no header."""
    own = table_of(states).of_ranks([rank], since).as_dict()
    for key in states:
        kind, generation, *numbers = key.split("/")
        owner = None if kind in ("generation", "deal") else int(numbers[0] if kind == "idle" else numbers[1])
        assert (key in own) == (owner == rank and int(generation) >= since)


CURSOR = {"draws": 3, "clock": 1.5, "epoch": 0, "window": -2, "taken": 4}


def test_a_group_is_the_rows_of_a_node():
    """Sorted by rank and worker; zeros where no lane has the field."""
    states = {
        f"cursor/1/0/{rank}/{worker}/a": CURSOR | {"draws": 10 * rank + worker, "bad": rank}
        for rank, worker in [(2, 0), (0, 1), (10, 0), (0, 0)]
    }
    states["cursor/1/0/2/0/a"] |= {"function": {"x": 1}, "pulled": [1, 2, 3, 4]}
    table = table_of(states | {"cursor/0/0/0/0/a": CURSOR, "cursor/1/0/5/0/b": CURSOR, "worker/1/0/0": 1})
    assert list(table.groups) == [(0, 0, "a"), (1, 0, "a"), (1, 0, "b")]
    rows = table.rows[table.groups[1, 0, "a"]]
    assert rows["rank"].tolist() == [0, 0, 2, 10]
    assert rows["worker"].tolist() == [0, 1, 0, 0]
    assert rows["draws"].tolist() == [0, 1, 20, 100]
    assert (rows["window"].tolist(), rows["clock"].dtype) == ([-2] * 4, np.float64)
    assert rows["bad"].tolist() == [0, 0, 2, 10]
    assert rows["given"].tolist() == [0] * 4
    assert rows["pulled"].tolist() == [[-1] * 4, [-1] * 4, [1, 2, 3, 4], [-1] * 4]
    assert rows["rare"].tolist() == [None, None, {"function": {"x": 1}}, None]
    assert table.others == {"worker/1/0/0": 1}
    assert list(as_dicts(empty_rows(0))) == []


def deep(levels):
    """So many levels of dicts."""
    value: dict = {}
    for _ in range(levels):
        value = {"x": value}
    return value


DAMAGED = [10**400, 2**53, 2**63 - 1, -1, "1", None, True, 1.5, [1], float("nan"), float("inf"), deep(100_000)]
FIELDS = [*REQUIRED, *OPTIONAL]
FINE = {
    ("window", -1), ("clock", -1), ("clock", 2**53), ("clock", 2**63 - 1), ("clock", 1.5), ("cost", 2**53),
    ("cost", 2**63 - 1), ("cost", 1.5),
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(DAMAGED)))
@pytest.mark.parametrize("field", FIELDS)
def test_a_damaged_field_is_refused(field, number):
    """As one by one: the key is named. Of a clock and a cost a whole number is one, too."""
    value = DAMAGED[number]
    states = {f"cursor/0/0/{rank}/0/a": copy.deepcopy(CURSOR) for rank in range(5)}
    states["cursor/0/0/3/0/a"][field] = value
    if type(value) in (int, float) and (field, value) in FINE:
        read = dict(table_of(states))
        states["cursor/0/0/3/0/a"][field] = value if field == "window" else float(value)
        assert read == states
        return
    with pytest.raises(StateError, match="states: 'cursor/0/0/3/0/a'"):
        table_of(states)


def test_a_field_of_another_version_is_refused():
    """What it would mean nobody knows."""
    held = loaded({"cursor/0/0/0/0/a": CURSOR})
    held["cursor/0/0/1/0/a"] = CURSOR | {"of_a_later_version": 1}
    with pytest.raises(StateError, match=r"states: 'cursor/0/0/1/0/a': .* at most"):
        table_of(held)


def test_what_is_nothing_is_left_out():
    """Of equal states the columns are equal, whoever wrote them."""
    written = {**CURSOR, "clock": 1, "output": 0, "bad": 0, "cost": 2}
    (read,) = table_of({"cursor/0/0/0/0/a": written}).values()
    assert read == {**CURSOR, "clock": 1.0, "cost": 2.0}
    assert type(read["clock"]) is type(read["cost"]) is float
    same = table_of({"cursor/0/0/0/0/a": read})
    assert same.digest == table_of({"cursor/0/0/0/0/a": written}).digest


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_refused(field):
    """There is nothing that it could be."""
    less = {name: value for name, value in CURSOR.items() if name != field}
    with pytest.raises(StateError, match="states: 'cursor/0/0/1/0/a'"):
        table_of({"cursor/0/0/0/0/a": CURSOR, "cursor/0/0/1/0/a": less})


@pytest.mark.parametrize(
    "key", ["cursor/0/0/0/a", "cursor/00/0/0/0/a", "cursor/-1/0/0/0/a", "cursor/0/0/1_0/0/a", "cursor/x"]
)
def test_a_damaged_key_is_refused(key):
    """Two keys must not mean the same entry."""
    with pytest.raises(StateError, match=f"states: '{key}'"):
        table_of({key: CURSOR})


@pytest.mark.parametrize("states", [None, [1], "text"])
def test_what_is_no_mapping_is_refused(states):
    """As anywhere."""
    with pytest.raises(StateError, match="expected the dict that to_state fills"):
        table_of(states)


def test_a_copy_is_updated_by_itself():
    """And knows the step of what was loaded."""
    held = LoadedStates(table_of({"cursor/0/0/0/0/a": CURSOR}), step=7)
    for other in (held.copy(), copy.copy(held), copy.deepcopy(held)):
        other["worker/0/0/0"] = 0
        assert (other.step, len(other), len(held)) == (7, 2, 1)


def test_nothing_is_deleted_without_a_word():
    """Neither what was loaded nor what was written since."""
    held = loaded({"cursor/0/0/0/0/a": CURSOR})
    held["worker/0/0/0"] = 0
    for delete in (held.clear, lambda: held.pop("cursor/0/0/0/0/a"), lambda: held.pop("worker/0/0/0")):
        with pytest.raises(TypeError, match="cannot be deleted"):
            delete()
    assert len(held) == 2


def test_a_large_table_is_pickled_by_columns():
    """For workers that are spawned, and other ranks: not value by value."""
    states = {f"cursor/0/0/{rank}/0/a": CURSOR | {"function": {"x": rank}} for rank in range(3000)}
    table = table_of(states)
    with cpu_within(0.5):
        content = pickle.dumps(table)
        assert pickle.loads(content).as_dict() == states
    assert len(content) < 3000 * 200


def test_what_is_read_can_be_changed_without_changing_what_was_loaded():
    """Each asking gives a dict of its own."""
    columns = loaded({"cursor/0/0/0/0/a": CURSOR})
    columns["cursor/0/0/0/0/a"]["draws"] = 99
    assert columns["cursor/0/0/0/0/a"] == CURSOR
    assert json.loads(json.dumps(dict(columns))) == through_json({"cursor/0/0/0/0/a": CURSOR})


def test_an_update_costs_about_what_one_of_a_dict_costs():
    """It is asked for every batch; the aim is 1.5 times, the bound here leaves room for a busy machine."""
    batch = {f"cursor/0/0/0/0/source{number}": CURSOR for number in range(12)}
    held = {}, loaded({"cursor/0/0/1/0/a": CURSOR})
    turns = [[timeit.timeit(lambda one=one: one.update(batch), number=200) for one in held] for _ in range(40)]
    plain, ours = (min(times) for times in zip(*turns, strict=True))  # by turns: a machine gets slower and faster
    assert ours < 2.5 * plain
