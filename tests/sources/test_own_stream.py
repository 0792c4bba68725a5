"""Iterables that streamdata knows nothing of, as sources."""

import logging
from collections import Counter
from itertools import islice

import pytest
from torch.utils.data import DataLoader, IterableDataset

from streamdata import (
    MergedDataset,
    SourceError,
    StateError,
    describe,
    load_states,
    mixed_collate,
    named,
    save_states,
    to_state,
)
from streamdata.sources.foreign import own_stream
from tests.mixing.test_resume import Packer, irregular_stream, many_to_one_stream, one_to_many
from tests.sources.own_streams import Counting, IterDataset, Sharded, SplitsItself, Stateful, WithStatefulIterator
from tests.streams import Numbers, assert_exact_resume, loaded, resumed

FUNCTIONS = {
    "none": {},
    "single": {"single_process_fn": one_to_many},
    "stream": {"process_fn": irregular_stream},
    "packer": {"process_fn": Packer()},
    "both": {"single_process_fn": one_to_many, "process_fn": irregular_stream},
    "max_bad": {"max_bad": 3},
}


def values(batches):
    return [sample["value"] for batch in batches for sample in batch]


def after(steps, dataset, num_workers=0):
    """The states after so many batches."""
    states = {}
    for batch in islice(loaded(dataset, num_workers), steps):
        states.update(to_state(batch))
    return states


STREAMS = [Stateful, WithStatefulIterator, IterDataset, Counting]
PAIRS = [
    (kind, function)
    for at, kind in enumerate(STREAMS)
    for number, function in enumerate(FUNCTIONS)
    if (at + number) % 2 == 0 or function == "packer"
]


@pytest.mark.parametrize(("kind", "functions"), PAIRS)
def test_a_resume_is_the_suffix(kind, functions):
    """Over several epochs, beside a map-style source, whoever says where it is."""
    sources = lambda: [kind(size=11, **FUNCTIONS[functions]), Numbers("a", 7, percent=0.5)]  # noqa: E731
    assert_exact_resume(lambda: MergedDataset(sources(), seed=3), steps=16, beyond=20)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SplitsItself(size=23, lanes="self"),
        lambda: Stateful(size=23, lanes="stride"),
        lambda: IterDataset(size=23, lanes="stride"),
        lambda: Sharded(size=23),
    ],
)
def test_several_workers_resume_exactly(make):
    """Also where another process reads the lane than before."""
    assert_exact_resume(lambda: MergedDataset([make(), Numbers("a", 7)], seed=3), steps=14, beyond=20, num_workers=3)


@pytest.mark.parametrize("cyclic", [True, False])
def test_nested_mixtures_and_yield_functions_resume_exactly(cyclic):
    """Of endless mixtures and of finite ones."""

    def make():
        inner = MergedDataset([Stateful(size=9), Numbers("b", 5)], cyclic=cyclic, seed=1)
        inner.name, inner.percent = "inner", 1
        return MergedDataset([inner, Numbers("a", 7)], cyclic=cyclic, seed=3, customized_yield_fn=many_to_one_stream)

    assert_exact_resume(make, steps=12, beyond=14)


@pytest.mark.parametrize(
    "dataset", [Counting(lanes="stride"), SplitsItself(lanes="self"), Sharded(), IterDataset(lanes="stride")]
)
@pytest.mark.parametrize("num_workers", [1, 3, 4])
def test_lanes_together_read_each_record_once(dataset, num_workers):
    """Those that end earlier, too."""
    stream = MergedDataset([dataset], cyclic=False, stop="all_exhausted")
    assert Counter(values(loaded(stream, num_workers))) == Counter(range(20))


def test_ranks_and_real_workers_read_each_record_once():
    """Forked workers hide their number from what is divided already."""
    found = Counter()
    for rank in range(2):
        stream = MergedDataset([Sharded(size=17)], cyclic=False)
        stream.set_data_parallel(2, rank)
        found.update(values(DataLoader(stream, num_workers=2, collate_fn=mixed_collate)))
    assert found == Counter(range(17))


def test_more_than_one_lane_needs_an_answer():
    """Never every record in every lane."""
    stream = MergedDataset([Counting()])
    with pytest.raises(ValueError, match=r"'own' \(Counting\): expected `lanes` or `shard`"):
        values(loaded(stream, 2))


def test_lanes_is_self_or_stride():
    """Said when the mixture is built."""
    with pytest.raises(ValueError, match="expected one of self, stride as lanes, got 'split'"):
        MergedDataset([Counting(lanes="split")])


def test_what_an_iterable_has_not_and_what_it_alone_has_are_errors():
    """They would have no effect."""
    with pytest.raises(ValueError, match="expected no records_per_block of an iterable, got 2"):
        MergedDataset([named(Counting(), name="x", percent=1, lanes="self", records_per_block=2)])
    with pytest.raises(ValueError, match=r"'x'.*expected no lanes, got 'stride'"):
        MergedDataset([named([{}], name="x", percent=1, lanes="stride")])


def test_self_divides_no_ranks():
    """Unless it knows its own."""

    def of_rank_1(**attributes):
        stream = MergedDataset([SplitsItself(lanes="self", **attributes)], cyclic=False)
        stream.set_data_parallel(2, 1)
        return stream

    with pytest.raises(ValueError, match=r"lanes=self divides it among the workers of a rank alone"):
        list(of_rank_1())
    with pytest.raises(ValueError, match=r"takes itself for rank 0 of 2"):
        list(of_rank_1(rank=0, world_size=2))
    assert len(list(of_rank_1(rank=1, world_size=2))) == 20


def test_what_is_divided_by_rank_is_not_divided_again():
    """It would lose half of its records."""
    stream = MergedDataset([Sharded(rank=1, world_size=2)])
    stream.set_data_parallel(2, 1)
    with pytest.raises(ValueError, match="divided by rank already"):
        next(iter(stream))


@pytest.mark.parametrize("kind", [Counting, IterDataset])
def test_it_is_not_elastic(kind):
    """Nobody knows what its lanes have left."""
    states = after(5, MergedDataset([kind(lanes="stride")]), num_workers=2)
    with pytest.raises(StateError, match=rf"'own' \({kind.__name__}\).*it is not elastic"):
        next(iter(resumed(lambda: MergedDataset([kind(lanes="stride")]), states)))


def test_another_topology_is_fine_for_one_that_was_not_there():
    """Its lanes are those of the run."""
    states = after(5, MergedDataset([Numbers("a", 9)]), num_workers=2)
    dataset = resumed(lambda: MergedDataset([Numbers("a", 9), Stateful(size=4)]), states)
    assert {sample["__datasetname__"] for sample in islice(dataset, 6)} == {"a", "own"}


@pytest.mark.parametrize("kind", [Stateful, WithStatefulIterator])
def test_one_that_says_where_it_is_reads_nothing_again(kind):
    """The cost of a resume does not grow with the position."""
    states = after(15, MergedDataset([kind()]))
    dataset = resumed(lambda: MergedDataset([kind()]), states)
    assert next(iter(dataset))["value"] == 15
    assert dataset.datasets[0].read == [15]


def test_others_skip_by_reading_and_say_so_once(caplog, monkeypatch):
    """One message per process, whatever the number of sources."""
    monkeypatch.setattr(own_stream, "_said_that_it_skips", [])
    states = after(15, MergedDataset([Counting()]))
    dataset = resumed(lambda: MergedDataset([Counting()]), states)
    with caplog.at_level(logging.WARNING, "streamdata"):
        assert next(iter(dataset))["value"] == 15
    assert dataset.datasets[0].read == list(range(16))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "state_dict" in message
    assert "reading" in message


def test_the_state_is_what_it_said():
    """Plain JSON, in the cursor; what it goes on changing is not."""
    states = after(3, MergedDataset([Stateful()]))
    assert states["cursor/0/0/0/0/own"]["stream"] == [{"at": 3, "of": [20]}]


@pytest.mark.parametrize("state", [{1: 2}, {"a": (1, 2)}, {"a": {3}}, {"a": float("nan")}])
def test_a_state_that_is_no_json_is_refused(state):
    """It would come back as something else, or not at all."""
    source = Stateful()
    source.state_dict = lambda: state
    with pytest.raises(ValueError, match=r"'own' \(Stateful\): expected plain JSON from its state_dict\(\)"):
        next(iter(MergedDataset([source])))


def test_epochs_are_told():
    """The pass and the epoch together, so that each has another order."""
    stream = MergedDataset([Sharded(size=5)])
    assert [sample["value"] for sample in islice(stream, 10)] == [0, 1, 2, 3, 4, 1, 2, 3, 4, 0]
    finite = MergedDataset([Sharded(size=3)], cyclic=False)
    assert [sample["value"] for _ in range(2) for sample in finite] == [0, 1, 2, 1, 2, 0]


@pytest.mark.parametrize(("cyclic", "size"), [(True, 0), (False, 0)])
def test_an_empty_stream_is_refused(cyclic, size):
    """It would look on without end, or train on nothing."""
    with pytest.raises(SourceError, match=r"'own' \(Counting\): expected records, got none"):
        list(MergedDataset([Counting(size=size)], cyclic=cyclic))


def test_a_lane_without_records_just_ends():
    """Three records for four lanes."""
    stream = MergedDataset([Counting(size=3, lanes="stride", process_fn=iter)], cyclic=False)
    assert sorted(values(loaded(stream, 4))) == [0, 1, 2]


def test_one_that_can_be_read_once_says_so():
    """Its second iterator gives nothing."""
    source = Counting(size=3)
    records = iter([{"value": 1}, {"value": 2}])
    type(source).__iter__, plain = (lambda _: records), type(source).__iter__
    try:
        with pytest.raises(SourceError, match="it may be used up"):
            list(MergedDataset([source]))
    finally:
        type(source).__iter__ = plain


class Given(Counting):
    """Gives these."""

    def __init__(self, records):
        super().__init__()
        self.records = records

    def __iter__(self):
        return iter(self.records)


class Failing(Counting):
    """Fails at some records, and goes on."""

    def __iter__(self):
        return map(self.get, range(self.size))

    def get(self, number):
        """Fails at each fifth."""
        if number % 5 == 1:
            raise OSError(f"no record {number}")
        return number


def test_failures_of_its_iterator_count_as_bad():
    """And what is no dict is delivered under `data`."""
    dataset = MergedDataset([Failing(size=8, max_bad=2)], cyclic=False)
    assert [sample["data"] for sample in dataset] == [0, 2, 3, 4, 5, 7]
    with pytest.raises(OSError, match="no record 1") as caught:
        list(MergedDataset([Failing(size=8)], cyclic=False))
    assert "source 'own': its iterator failed at record 1 of epoch 0" in caught.value.__notes__[0]
    assert_exact_resume(lambda: MergedDataset([Failing(size=8, max_bad=9)]), steps=8, beyond=8)


class FailingGenerator(Failing):
    """Ends when it fails."""

    def __iter__(self):
        for number in range(self.size):
            yield self.get(number)


def test_a_generator_that_fails_is_not_taken_for_ended():
    """What comes after would be lost in silence."""
    with pytest.raises(OSError, match="no record 1") as caught:
        list(MergedDataset([FailingGenerator(size=8, max_bad=5)], cyclic=False))
    assert "as a generator does" in caught.value.__notes__[-1]


def test_a_shorter_stream_is_noticed():
    """It does not give again what was read."""
    states = after(15, MergedDataset([Counting()]))
    with pytest.raises(StateError, match="which now gives 10"):
        next(iter(resumed(lambda: MergedDataset([Counting(size=10)]), states)))


def test_neither_holdout_nor_skip_apply():
    """Its records have no numbers."""
    with pytest.raises(ValueError, match="no holdout of an iterable"):
        MergedDataset([Counting(holdout=0.1)])
    with pytest.raises(ValueError, match="got an iterable"):
        MergedDataset([Counting()], skip=[{"source": "own", "index": 3}])


def test_states_are_saved_and_described(tmp_path):
    """As those of any source."""
    states = after(5, MergedDataset([Stateful()]))
    save_states(tmp_path, states, step=5)
    assert load_states(tmp_path)["cursor/0/0/0/0/own"] == states["cursor/0/0/0/0/own"]
    assert "iterable, lanes stride" in describe(MergedDataset([Stateful(lanes="stride")]))
    damaged = {**states, "cursor/0/0/0/0/own": {**states["cursor/0/0/0/0/own"], "stream": 3}}
    with pytest.raises(StateError, match="'stream': 3"):
        MergedDataset([Stateful()]).set_dataloader_states(damaged)


def test_named_takes_its_attributes():
    """As a recipe sets them."""
    source = named(Counting(), name="x", percent=1, lanes="stride")
    assert source.lanes == "stride"


@pytest.mark.parametrize("make", [lambda records: named(records, name="own", percent=1), Given])
def test_a_record_brings_no_states(make):
    """Under this name an output carries those of what it was made of: it would be taken for one."""
    with pytest.raises(SourceError, match=r"source 'own': expected records without the field '__states__'"):
        list(MergedDataset([make([{"__states__": "x"}])], cyclic=False))


def test_none_of_an_iterable_is_an_error_with_its_number():
    """As of a map-style dataset: it would be trained on as a record."""

    class Holes(IterableDataset):
        name, percent = "a", 1

        def __iter__(self):
            return iter([{"n": 0}, None, {"n": 2}])

    with pytest.raises(SourceError, match=r"source 'a' \(Holes\): expected a record, got None") as caught:
        list(islice(MergedDataset([Holes()]), 3))
    assert "failed at record 1 of epoch 0" in "".join(caught.value.__notes__)
