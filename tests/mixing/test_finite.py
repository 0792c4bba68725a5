"""One pass of any recipe: every source to its end, as it lies."""

import copy
from collections import Counter
from itertools import islice

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, StateError, to_state
from tests.shard_files import write_jsonl
from tests.streams import Numbers, assert_exact_resume, delivered, plain


def of(name, **options):
    """900 rows in three sources, as a recipe for training has them."""
    sources = [Numbers("a", 100), Numbers("b", 300, 3), Numbers("c", 500)]
    return MergedDataset(sources, name=name, percent=1, **options)


def test_every_row_is_read_once():
    """Where first_exhausted, the default of a finite mixture, ends after 500 of 900 rows."""
    assert len(list(of("top", cyclic=False))) < 600
    counts = Counter((sample["__datasetname__"], sample["value"]) for sample in of("top").finite())
    assert counts == {(name, n): 1 for name, size in (("a", 100), ("b", 300), ("c", 500)) for n in range(size)}


@pytest.mark.parametrize("cyclic", [True, False])
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_every_level_comes_to_its_end(cyclic, stop):
    """Mixtures within mixtures, and sources of several epochs."""
    inner = of("in", cyclic=cyclic, stop="first_exhausted")
    dataset = MergedDataset([inner, Numbers("d", 10, max_epochs=3)], cyclic=cyclic, stop=stop)
    once = delivered(dataset.finite, 2, 3)
    assert once.total() == len(once) == 910
    assert dataset.datasets[1].max_epochs == 3


def test_the_order_is_the_natural_one(tmp_path):
    """Of map-style sources and of shards, whatever the recipe shuffles."""
    shards = JsonlIterableDataset(write_jsonl(tmp_path, [9, 4, 20]), name="s", percent=1)
    samples = list(MergedDataset([Numbers("a", 50), shards], seed=9).finite())
    values = {name: [s["value"] for s in samples if s["__datasetname__"] == name] for name in ("a", "s")}
    assert values == {"a": list(range(50)), "s": list(range(33))}


def test_the_original_stays_as_it_is():
    """Its stream, its states and its sources."""
    dataset, other = of("top", seed=4), of("top", seed=4)
    states = to_state(list(islice(other, 7)))
    dataset.set_dataloader_states(states)
    before = copy.copy(dataset.__dict__)
    once = dataset.finite()
    assert len(list(once)) == 900
    assert {key: dataset.__dict__[key] for key in before} == before
    assert [plain(s) for s in islice(dataset, 20)] == [plain(s) for s in islice(of("top", seed=4), 7, 27)]
    with pytest.raises(StateError, match="has another order"):
        once.set_dataloader_states(states)


def test_it_has_the_same_part_and_what_else_the_recipe_says():
    """Attributes, functions, what is to be skipped, and the rank."""
    source = Numbers("s", 200, holdout=0.2, part="valid", single_process_fn=lambda record: {"v": record["value"]})
    dataset = MergedDataset([source], skip=[{"source": "s", "index": 3}], customized_yield_fn=doubled)
    dataset.set_data_parallel(2, 1)
    twice = [sample["v"] for sample in dataset.finite()]
    assert twice == sorted(twice)
    assert 20 < len(twice) < 60
    assert twice[::2] == twice[1::2]


def doubled(samples):
    """A yield function."""
    for sample in samples:
        yield sample
        yield dict(sample)


def test_a_schedule_does_not_keep_a_source_from_its_end():
    """One whose share falls to 0 comes to its end after the others."""
    dataset = MergedDataset([Numbers("a", 100, [[0, 1], [9, 0]]), Numbers("b", 30)])
    assert Counter(s["__datasetname__"] for s in dataset.finite()) == {"a": 100, "b": 30}


def test_it_resumes_exactly():
    """It is a dataset like any other."""
    inner = lambda: MergedDataset([Numbers("a", 9), Numbers("b", 5)], name="in", percent=1)  # noqa: E731
    assert_exact_resume(lambda: MergedDataset([inner(), Numbers("c", 11)]).finite(), steps=25, beyond=0, num_workers=2)


def test_a_subclass_stays_one():
    """With what it holds."""

    class Named(MergedDataset):
        def __init__(self, sources):
            super().__init__(sources)
            self.note = "kept"

    once = Named([Numbers("a", 3)]).finite()
    assert (type(once), once.note, len(list(once))) == (Named, "kept", 3)
