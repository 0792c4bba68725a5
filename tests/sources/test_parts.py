"""Exact parts of map-style datasets: disjoint, complete, and the same for every seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    SeqDataset,
    SourceError,
    StateError,
    describe,
    named,
    to_state,
)
from streamdata.fields import INDEX
from streamdata.mixing.tree import tree_of
from streamdata.recipe.check import check_recipe
from streamdata.recipe.named_source import PART_NAMES, read_parts
from tests.shard_files import write_jsonl
from tests.stores.tiny_stores import write
from tests.streams import Numbers, NumbersAhead, assert_exact_resume, loaded

KINDS = {"singly": Numbers, "ahead": NumbersAhead}


def of_part(part, by, kind=Numbers, size=50, seed=0, parts="7,2,1", **attributes):
    source = kind("s", size)
    for name, value in {"parts": parts, "part": part, "parts_by": by, **attributes}.items():
        setattr(source, name, value)
    return MergedDataset([source], seed=seed, cyclic=False)


def indices(dataset):
    return sorted(sample[INDEX] for sample in dataset)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["seed", "tail"])
def test_parts_are_disjoint_and_complete(kind, by):
    """Exactly their shares, whatever the mixture's seed."""
    found = {part: indices(of_part(part, by, KINDS[kind], seed=number)) for number, part in enumerate(PART_NAMES)}
    assert [len(some) for some in found.values()] == [35, 10, 5]
    assert sorted(index for some in found.values() for index in some) == list(range(50))
    assert (found["test"] == list(range(45, 50))) == (by == "tail")
    assert indices(of_part(None, None)) == indices(of_part("train", "seed", seed=9))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=3).filter(any), st.integers(0, 10**12))
def test_ranges_follow_one_another(shares, count):
    """From 0 to the number of records."""
    spans = [read_parts(shares, part).span(count) for part in PART_NAMES]
    assert [span.first for span in spans] == [0, spans[0].last, spans[1].last]
    assert spans[-1].last == count
    assert all(span.first <= span.last for span in spans)


@pytest.mark.parametrize("by", ["seed", "tail"])
def test_a_part_resumes_exactly(by):
    """Among others, in windows of a store, and where records belong together."""
    assert_exact_resume(lambda: MergedDataset([*of_part("valid", by).datasets, Numbers("other", 7)], seed=3))
    copies = indices(of_part("valid", by, size=48, records_per_block=4))
    assert copies == [4 * block + at for block in sorted({index // 4 for index in copies}) for at in range(4)]


def test_windows_of_a_store_are_cut_likewise(tmp_path):
    """As any map-style dataset."""
    parts = {"name": "tokens", "percent": 1, "parts": "1,1", "parts_by": "tail"}
    windows = named(SeqDataset(write("bin", tmp_path), 4), part="valid", **parts)
    assert indices(MergedDataset([windows], cyclic=False)) == list(range(7, 14))


def test_sizes_are_those_of_the_part(tmp_path):
    """For weights by size, and in the tree that is shown."""
    tokens = SeqDataset(write("bin", tmp_path), 4, name="tokens", percent={"by": "tokens"})
    tokens.parts, tokens.part = "3,1", "valid"
    other = SeqDataset(tmp_path, 4, name="other", percent={"by": "tokens"})
    assert tree_of(MergedDataset([tokens, other])).weights == {"tokens": 14.0, "other": 57.0}
    shown = describe(of_part("valid", "tail"))
    assert "part valid of parts 7,2,1 by tail" in shown
    assert " 10 " in shown


def test_another_part_is_another_source_to_states():
    """So is another cut of the same."""
    states = to_state(next(iter(loaded(of_part("train", "seed"), 0))))
    for other in (of_part("valid", "seed"), of_part("train", "tail"), of_part("train", "seed", parts="8,2")):
        with pytest.raises(StateError, match="source 's' has another order"):
            other.set_dataloader_states(states)


BAD = [
    ({"parts": "969,30,1", "holdout": 0.01}, "expected holdout or parts, got holdout=0.01 and parts='969,30,1'"),
    ({"parts": "1,2,3,4"}, "expected up to three shares as parts"),
    ({"parts": "1,-1"}, "expected up to three shares as parts"),
    ({"parts": [0, 0]}, "expected up to three shares as parts"),
    ({"parts": "1,1", "part": "dev"}, "expected one of train, valid, test as part, got 'dev'"),
    ({"parts": "1,1", "parts_by": "head"}, "expected one of seed, tail as parts_by, got 'head'"),
    ({"parts": None, "parts_by": "tail"}, "expected up to three shares as parts, got None"),
]


@pytest.mark.parametrize(("attributes", "message"), BAD)
def test_what_is_no_part_is_an_error(attributes, message, tmp_path):
    """That names both keys where there are two; in a recipe at its line."""
    given = {"part": None, "by": None, **attributes}
    with pytest.raises(ValueError, match=message):
        of_part(**given)
    lines = "".join(f"   {key}: {value!r}\n" for key, value in attributes.items() if value is not None)
    source = f" - target: streamdata.DPODataset\n   params: {{load_path: x, name: s}}\n   percent: 1\n{lines}"
    (tmp_path / "recipe.yaml").write_text(f"target: streamdata.MergedDataset\nparams:\n datasets:\n{source}")
    (problem,) = check_recipe(tmp_path / "recipe.yaml")
    assert ":7:" in problem.location or ":8:" in problem.location


def test_an_empty_part_is_an_error_that_names_it():
    """As soon as it is to be read."""
    with pytest.raises(ValueError, match="source 's': expected records of the part test of parts 999,0,1 by tail, got"):
        list(of_part("test", "tail", parts="999,0,1"))


def test_shards_have_no_parts(tmp_path):
    """Their records are not counted in one row."""
    source = named(JsonlIterableDataset(write_jsonl(tmp_path, [5])), name="lines", percent=1, parts="1,1")
    with pytest.raises((ValueError, SourceError), match="expected parts of a map-style dataset, got the part train"):
        MergedDataset([source])
