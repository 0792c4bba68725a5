"""Which fields of a record its samples carry."""

import pytest

from streamdata import MergedDataset
from tests.streams import Numbers


class Noted(Numbers):
    """Numbers with fields of several spellings."""

    def __getitem__(self, index):
        return {"value": index, "__note__": "n", "__private": 1, "public__": 2, 3: 4}


def single(record):
    return {"own": record["value"]}


def stream(records):
    for record in records:
        yield {"own": record["value"]}


@pytest.mark.parametrize("function", [{"single_process_fn": single}, {"process_fn": stream}])
def test_a_sample_gets_the_fields_with_two_underscores_at_both_ends(function):
    """The others are the function's business."""
    (sample,) = MergedDataset([Noted("a", 1, **function)], cyclic=False)
    assert sample["__note__"] == "n"
    assert {name for name in sample if not str(name).endswith("__")} == {"own"}
    assert "public__" not in sample


def test_a_function_may_change_a_field():
    """What it gives counts."""

    def renamed(record):
        return {**record, "__note__": "other"}

    (sample,) = MergedDataset([Noted("a", 1, single_process_fn=renamed)], cyclic=False)
    assert sample["__note__"] == "other"
