"""Exactly once: over all lanes together, every record of an epoch is delivered once, counted as a multiset."""

from collections import Counter
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from streamdata import MergedDataset
from tests.streams import Numbers, NumbersAhead, delivered, in_lane


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=3), dp_size=st.integers(1, 4), num_workers=st.integers(0, 3)
)
def test_a_finite_stream_delivers_every_record_once(sizes, dp_size, num_workers):
    """Record 0 included, whatever divides or not; fewer records than lanes work."""

    def make():
        kinds = (Numbers, NumbersAhead, Numbers)
        sources = [kinds[k](f"s{k}", size, 1 + k) for k, size in enumerate(sizes)]
        return MergedDataset(sources, cyclic=False, stop="all_exhausted", seed=2)

    want = Counter((f"s{k}", index, None) for k, size in enumerate(sizes) for index in range(size))
    assert delivered(make, dp_size, num_workers) == want


def test_an_endless_stream_delivers_every_epoch_once():
    """Five epochs of eleven records over three lanes: every record five times, no lane waits at an epoch's end."""
    counts = Counter()
    for worker, share in enumerate((19, 18, 18)):
        lane = in_lane(MergedDataset([Numbers("a", 11)]), worker, 3)
        counts.update(sample["__index__"] for sample in islice(lane, share))
    assert counts == Counter(dict.fromkeys(range(11), 5))


def test_first_exhausted_stops_when_a_draw_finds_nothing():
    """The stream ends at the draw that the shorter source cannot serve, not one sample before."""
    dataset = MergedDataset([Numbers("a", 3), Numbers("b", 50)], cyclic=False, shuffle_unstreaming_subsets=False)
    names = [sample["__datasetname__"] for sample in dataset]
    assert names.count("a") == 3
    assert names.count("b") in (3, 4)


def test_a_source_without_records_for_a_lane_stops_nothing():
    """One record for two lanes: the lane without it goes on with the other source."""
    dataset = MergedDataset([Numbers("a", 1), Numbers("b", 20)], cyclic=False, stop="first_exhausted")
    ends = [[sample["__datasetname__"] for sample in in_lane(dataset, worker, 2)] for worker in range(2)]
    assert (ends[0].count("a"), ends[0].count("b") < 10) == (1, True)
    assert (ends[1].count("a"), ends[1].count("b")) == (0, 10)


def test_what_a_dataset_returned_is_never_changed():
    """Samples are copies: a dataset that returns its own dicts keeps them."""
    items = [{"value": 1}, {"value": 2}]

    class Items(list):
        name, percent = "items", 1

    assert len(list(MergedDataset([Items(items)], cyclic=False))) == 2
    assert items == [{"value": 1}, {"value": 2}]


def test_a_sample_that_is_no_dict_comes_under_data():
    """Any map-style dataset will do; the fields say where the sample comes from."""

    class Letters(list):
        name, percent = "letters", 1

    dataset = MergedDataset([Letters("xyz")], cyclic=False, shuffle_unstreaming_subsets=False)
    samples = list(dataset)
    assert [sample["data"] for sample in samples] == ["x", "y", "z"]
    fields = {key: samples[1][key] for key in ("__datasetname__", "__dprank__", "__workerid__", "__index__")}
    assert fields == {"__datasetname__": "letters", "__dprank__": 0, "__workerid__": 0, "__index__": 1}
    assert isinstance(samples[1]["__seed__"], int)


def test_the_order_depends_on_names_not_on_positions():
    """Another order of the sources in the recipe changes no source's own order; another seed or name does."""

    def order(name, seed, position):
        sources = [Numbers("other", 5)]
        sources.insert(position, Numbers(name, 20))
        return [
            s["value"] for s in islice(iter(MergedDataset(sources, seed=seed)), 60) if s["__datasetname__"] == name
        ][:20]

    assert order("a", 0, 0) == order("a", 0, 1)
    assert order("a", 0, 0) != order("a", 1, 0)
    assert order("a", 0, 0) != order("b", 0, 0)


def test_shuffling_can_be_switched_off_by_the_nearest_parent():
    """shuffle_unstreaming_subsets=False of an inner mixture holds for its leaves, whatever the outer one says."""
    inner = MergedDataset([Numbers("a", 9)], shuffle_unstreaming_subsets=False)
    inner.name, inner.percent = "inner", 1
    samples = list(islice(iter(MergedDataset([inner, Numbers("b", 9)])), 18))
    assert [s["value"] for s in samples if s["__datasetname__"] == "inner.a"] == list(range(9))
    assert [s["value"] for s in samples if s["__datasetname__"] == "b"] != list(range(9))


def test_passes_differ_and_repeat():
    """set_epoch begins another order of the same records, and the same order when it is set again."""

    def values(epoch):
        dataset = MergedDataset([Numbers("a", 12)], cyclic=False)
        dataset.set_epoch(epoch)
        return [sample["value"] for sample in dataset]

    assert values(0) != values(1)
    assert values(1) == values(1)
    assert sorted(values(0)) == sorted(values(1)) == list(range(12))


def test_a_finite_mixture_within_a_finite_one_is_read_once():
    """Each record of both; under `first_exhausted` each ends with the first of its sources that does."""

    def counts(stop):
        inner = MergedDataset([Numbers("a", 5), Numbers("b", 9)], cyclic=False, stop=stop, name="inner", percent=1)
        samples = list(MergedDataset([inner, Numbers("c", 40)], cyclic=False, stop=stop))
        return Counter((sample["__datasetname__"], sample["value"]) for sample in samples)

    assert len(counts("all_exhausted")) == counts("all_exhausted").total() == 54
    cut_short = counts("first_exhausted")
    assert cut_short < counts("all_exhausted")
    assert sum(name == "inner.a" for name, _ in cut_short) == 5
