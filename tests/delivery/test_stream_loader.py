"""The loader that a trainer holds: what it gives after each state is what it would have given."""

import copy
import gc
import json
import multiprocessing
import pickle
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from streamdata import MergedDataset, StateError, StreamLoader, merge_states, mixed_collate, named, to_state
from streamdata.delivery.even_ranks import NUM_KEPT
from streamdata.delivery.recent_states import RecentStates
from streamdata.states.table import LoadedStates, table_of
from tests.ranks import CONTEXT, fork_workers
from tests.streams import through_json

BATCH = 3
ALL = Counter([*range(17), *range(100, 111)])


def make_dataset(*, cyclic: bool = True, rank: int = 0, size: int = 1) -> MergedDataset:
    """Two sources of 17 and 11 numbers, mixed."""
    sources = [named(list(range(17)), name="a", percent=0.6), named(list(range(100, 111)), name="b", percent=0.4)]
    dataset = MergedDataset(sources, seed=5, cyclic=cyclic, stop="all_exhausted")
    dataset.set_data_parallel(size, rank)
    return dataset


def make_loader(num_workers: int = 0, *, dataset: MergedDataset | None = None, **settings: Any) -> StreamLoader:
    """Of the dataset above, in batches of three."""
    return StreamLoader(make_dataset() if dataset is None else dataset, BATCH, num_workers, **settings)


def values(batches: Iterable[Any]) -> list[list[int]]:
    """What the batches hold."""
    return [batch["data"].tolist() for batch in batches]


def counted(batches: Iterable[Any]) -> Counter:
    """The values as a multiset."""
    return Counter(chain.from_iterable(values(batches)))


def resumed(states: dict, num_workers: int = 0, **settings: Any) -> StreamLoader:
    """A new loader that goes on where states say."""
    loader = make_loader(num_workers, **settings)
    loader.load_state_dict(through_json(states))
    return loader


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_state_gives_the_suffix(num_workers: int) -> None:
    """Those that a trainer asks for while batches were pulled further, plain JSON, and those of a second resume."""
    loader = make_loader(num_workers, **({"prefetch_factor": 3} if num_workers else {}))
    whole = values(islice(loader, 9))
    for n in (0, 1, 4, 8) if num_workers else range(10):
        again = resumed(loader.state_after(n), num_workers)
        assert values(islice(again, 9 - n)) == whole[n:], f"after {n}"
        if n == 4:
            assert values(islice(resumed(again.state_after(2), num_workers), 3)) == whole[6:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_finite_passes_follow_one_another(num_workers: int) -> None:
    """Each in another order, all read once; a state of the end of one begins the next."""
    loader = make_loader(num_workers, dataset=make_dataset(cyclic=False))
    passes = [values(loader) for _ in range(3)]
    for read in passes:
        assert Counter(chain.from_iterable(read)) == ALL
    assert passes[0] != passes[1]
    whole = list(chain.from_iterable(passes))
    ends = [len(passes[0]), len(passes[0]) + len(passes[1])]
    for n in (1, ends[0] - 1, ends[0], ends[0] + 1, ends[1]):
        again = resumed(loader.state_after(n), num_workers, dataset=make_dataset(cyclic=False))
        end = next(end for end in (*ends, len(whole)) if end > n)
        assert values(again) == whole[n:end], f"after {n}"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_is_cut_into_stretches(num_workers: int) -> None:
    """Nothing between them is lost or comes again, the workers live on, and a resume inside gives the rest."""
    whole = values(islice(make_loader(num_workers), 13))
    loader = make_loader(num_workers, steps_per_epoch=4)
    assert len(loader) == 4
    stretches = [values(loader)]
    stream = loader._stream
    stretches += [values(loader) for _ in range(2)]
    assert stretches == [whole[0:4], whole[4:8], whole[8:12]]
    assert loader._stream is stream
    for n in range(12) if not num_workers else (0, 3, 4, 9):
        again = resumed(loader.state_after(n), num_workers, steps_per_epoch=4)
        assert again.batches_left == 4 - n % 4
        assert values(again) == whole[n : (n // 4 + 1) * 4], f"after {n}"
        assert len(values(again)) == len(again) == 4


def test_a_stretch_goes_on_after_break() -> None:
    """As after a resume: the next iteration gives its rest."""
    whole = values(islice(make_loader(), 8))
    loader = make_loader(steps_per_epoch=4)
    assert values(islice(loader, 3)) == whole[:3]
    assert values(loader) == whole[3:4]
    assert values(islice(loader, 4)) == whole[4:]  # a trainer that knows the length asks for no more
    assert len(values(loader)) == 4


def test_a_stretch_of_a_finite_stream_holds_the_next_pass() -> None:
    """So that all ranks have as many batches, whatever their shares are."""
    passes = make_loader(dataset=make_dataset(cyclic=False))
    whole = values(passes) + values(passes)
    loader = make_loader(dataset=make_dataset(cyclic=False), steps_per_epoch=7)
    assert values(loader) + values(loader) == whole[:14]
    again = resumed(loader.state_after(9), dataset=make_dataset(cyclic=False), steps_per_epoch=7)
    assert values(again) == whole[9:14]


@pytest.mark.parametrize("rank", range(3))
def test_where_a_rank_has_no_share_all_refuse_to_step(rank: int) -> None:
    """None would wait for it; whether they start or resume, and wherever the others stand."""
    for begun in range(3):
        dataset = MergedDataset([named([1, 2], name="two", percent=1)], cyclic=False)
        dataset.set_data_parallel(3, rank)
        loader = StreamLoader(dataset, 1, steps_per_epoch=3)
        dataset.set_epoch(begun)
        with pytest.raises(ValueError, match=r"expected that each of 3 ranks has one, got none for rank 2\n  Give the"):
            next(iter(loader))


def test_passes_of_which_a_rank_has_no_share_do_not_count() -> None:
    """Of the few records of a part each rank has some in most passes."""
    source = named(list(range(30)), name="numbers", percent=1, holdout=0.1, part="valid")
    counts = []
    for rank in range(2):
        dataset = MergedDataset([source], cyclic=False)
        dataset.set_data_parallel(2, rank)
        counts.append(len(values(StreamLoader(dataset, 1, steps_per_epoch=60))))
    assert counts == [60, 60]


def test_passes_that_other_ranks_had_begun_do_not_count() -> None:
    """Ranks go through passes by themselves: of several there may be nothing left for one that joins them."""

    def loader(rank: int, size: int, states: dict) -> StreamLoader:
        sources = [named(list(range(count)), name=f"s{count}", percent=count) for count in (5, 7)]
        dataset = MergedDataset(sources, seed=8, cyclic=False)
        dataset.set_data_parallel(size, rank)
        dataset.set_dataloader_states(states)
        return StreamLoader(dataset, 1, steps_per_epoch=20)

    ranks = [loader(rank, 5, {}) for rank in range(5)]
    assert [len(values(each)) for each in ranks] == [20] * 5
    states = merge_states(*(each.state_after(20) for each in ranks))
    assert [len(values(loader(rank, 6, states))) for rank in range(6)] == [20] * 6


class FirstHasAll(IterableDataset):
    """Whose other shards have nothing."""

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records

    def shard(self, num_shards: int, index: int) -> "FirstHasAll":
        return FirstHasAll(0 if index else 3)

    def __iter__(self) -> Iterator[dict]:
        return ({"data": number} for number in range(self._num_records))


def test_a_share_that_turns_out_to_have_nothing_is_an_error() -> None:
    """After two passes, on its rank."""
    dataset = MergedDataset([named(FirstHasAll(3), name="first", percent=1)], cyclic=False)
    dataset.set_data_parallel(2, 1)
    with pytest.raises(ValueError, match="2 whole passes gave this rank nothing: its share of the sources has no"):
        next(iter(StreamLoader(dataset, 1, steps_per_epoch=3)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iteration_that_is_left_goes_on(num_workers: int) -> None:
    """After the last batch that the loop received, without a warning; at its end the next pass begins."""
    whole = make_loader(num_workers, dataset=make_dataset(cyclic=False))
    first, second, third = values(whole), values(whole), values(whole)
    loader = make_loader(num_workers, dataset=make_dataset(cyclic=False))
    assert values(islice(loader, 2)) + values(islice(loader, 3)) + values(loader) == first
    assert values(islice(loader, len(second))) == second
    assert values(loader) == third


def test_what_was_pulled_ahead_may_come_again() -> None:
    """The count goes back with it, also over the end of a pass, and an iteration under way ends."""
    whole = make_loader(dataset=make_dataset(cyclic=False))
    first, second = values(whole), values(whole)
    loader = make_loader(dataset=make_dataset(cyclic=False))
    iteration = iter(loader)
    values(islice(iteration, 4))
    loader.go_back(2)
    assert (loader.num_batches, loader.state_dict()) == (2, loader.state_after(2))
    with pytest.raises(RuntimeError, match="another iteration began"):
        next(iteration)
    assert values(loader) == first[2:]
    next(iter(loader))
    loader.go_back(len(first) - 1)
    assert values(loader) + values(loader) == first[-1:] + second
    with pytest.raises(StateError, match="expected a number of batches"):
        loader.go_back(loader.num_batches + 1)


def test_going_back_stays_in_the_pass_that_was_named() -> None:
    """Also where nothing of it is left as delivered; a number is still the pass, since nothing was loaded."""
    named_pass, loader = (make_loader(dataset=make_dataset(cyclic=False)) for _ in range(2))
    for each in (named_pass, loader):
        each.set_epoch(3)
    third = values(named_pass)
    next(iter(loader))
    loader.go_back(0)
    assert values(loader) == third
    fresh = make_loader(dataset=make_dataset(cyclic=False))
    list(islice(fresh, 2))
    fresh.go_back(1)
    next(iter(fresh))
    fresh.set_epoch(3)
    assert values(fresh) == third


def test_a_trainer_may_have_pulled_ahead() -> None:
    """Its own count says what it trained on."""
    loader = make_loader(2)
    ahead = iter(loader)
    pulled = values(islice(ahead, 5))
    assert values(islice(resumed(loader.state_after(3), 2), 2)) == pulled[3:]
    assert loader.state_dict() == loader.state_after(5)
    assert values(islice(ahead, 2)) == values(islice(resumed(loader.state_after(5), 2), 2))


@pytest.mark.parametrize(("old", "new"), [((2, 0), (1, 2)), ((1, 2), (3, 0)), ((2, 2), (1, 0))])
def test_other_ranks_go_on(old: tuple[int, int], new: tuple[int, int]) -> None:
    """From the joined states: each record of the pass once, and the stretch where the furthest rank was."""
    before: Counter = Counter()
    parts = []
    for rank in range(old[0]):
        loader = make_loader(old[1], dataset=make_dataset(cyclic=False, rank=rank, size=old[0]), uneven="drop")
        before.update(counted(islice(loader, 2)))
        parts.append(loader.state_dict())
    joined = merge_states(*parts)
    after: Counter = Counter()
    for rank in range(new[0]):
        dataset = make_dataset(cyclic=False, rank=rank, size=new[0])
        for batch in resumed(joined, new[1], dataset=dataset, uneven="pad"):
            after.update(batch["data"][~batch["__padding__"]].tolist())
        dataset = make_dataset(cyclic=False, rank=rank, size=new[0])
        again = resumed(joined, new[1], dataset=dataset, steps_per_epoch=5)
        assert [len(values(again)), len(values(again))] == [3, 5]
        assert len(values(resumed(again.state_after(1), new[1], dataset=dataset, steps_per_epoch=5))) == 2
    assert before + after == ALL


def test_a_stretch_counts_what_each_rank_delivered() -> None:
    """Under the same topology: its own batches, not those of the others in the joined states."""
    loaders = [make_loader(dataset=make_dataset(rank=rank, size=2), steps_per_epoch=4) for rank in range(2)]
    for loader, delivered in zip(loaders, (1, 3), strict=True):
        values(islice(loader, delivered))
    joined = merge_states(*(loader.state_dict() for loader in loaders))
    for rank, left in ((0, 3), (1, 1)):
        again = resumed(joined, dataset=make_dataset(rank=rank, size=2), steps_per_epoch=4)
        assert len(values(again)) == left


def passes_of(dataset: MergedDataset, number: int) -> list[list[int]]:
    """What a pass holds."""
    dataset.set_epoch(number)
    return [[sample["data"] for sample in batch] for batch in DataLoader(dataset, BATCH, collate_fn=mixed_collate)]


def test_set_epoch_names_the_pass() -> None:
    """Of a finite stream; without it passes count up, and one that is named again comes again."""
    loader = make_loader(dataset=make_dataset(cyclic=False))
    wanted = [passes_of(make_dataset(cyclic=False), number) for number in range(6)]
    loader.set_epoch(3)
    assert [values(loader), values(loader)] == wanted[3:5]
    loader.set_epoch(1)
    assert [values(loader), values(loader)] == wanted[1:3]
    assert values(islice(loader, 2)) == wanted[3][:2]
    loader.set_epoch(5)
    assert values(islice(loader, 2)) == wanted[5][:2]
    assert values(resumed(loader.state_dict(), dataset=make_dataset(cyclic=False))) == wanted[5][2:]


def test_a_pass_may_be_named_on_the_dataset() -> None:
    """As without the loader; one that was read already comes again, with states of its own."""
    dataset = make_dataset(cyclic=False)
    wanted = [passes_of(make_dataset(cyclic=False), number) for number in range(5)]
    loader = make_loader(dataset=dataset)
    for number in (3, 4, 1):
        dataset.set_epoch(number)
        assert values(loader) == wanted[number]
    dataset.set_epoch(1)
    assert values(islice(loader, 3)) == wanted[1][:3]
    assert values(resumed(loader.state_dict(), dataset=make_dataset(cyclic=False))) == wanted[1][3:]


@pytest.mark.parametrize("number", [0, 1, 7])
def test_set_epoch_never_discards_loaded_states(number: int) -> None:
    """The first call after a load names the pass in which they go on, and later ones count from it."""
    wanted = [passes_of(make_dataset(cyclic=False), number) for number in range(4)]
    loader = make_loader(dataset=make_dataset(cyclic=False))
    loader.set_epoch(1)
    assert values(islice(loader, 4)) == wanted[1][:4]
    again = resumed(loader.state_dict(), dataset=make_dataset(cyclic=False))
    again.set_epoch(number)
    assert values(islice(again, 1)) == wanted[1][4:5]
    again.set_epoch(number)
    assert values(again) == wanted[1][5:]
    again.set_epoch(number + 1)
    assert values(again) == wanted[2]
    again.load_state_dict(loader.state_dict())
    again.set_epoch(number)
    again.set_epoch(number + 2)
    assert values(again) == wanted[3]


def test_set_epoch_only_names_a_stretch() -> None:
    """Nothing of an endless stream depends on it, nor under steps_per_epoch."""
    whole = values(islice(make_loader(), 8))
    for settings in ({}, {"steps_per_epoch": 4}):
        loader = make_loader(**settings)
        loader.set_epoch(3)
        assert values(islice(loader, 2)) == whole[:2]
        loader.set_epoch(1)
        assert values(islice(loader, 2)) == whole[2:4]
        again = resumed(loader.state_dict(), **settings)
        again.set_epoch(0)
        assert values(islice(again, 4)) == whole[4:]
    with pytest.raises(ValueError, match="set_epoch: expected an int >= 0"):
        loader.set_epoch(-1)


def test_states_set_on_the_dataset_are_those_resumed_from() -> None:
    """Before the loader is made and afterwards."""
    loader = make_loader()
    whole = values(islice(loader, 6))
    states = loader.state_after(2)
    dataset = make_dataset()
    dataset.set_dataloader_states(states)
    again = make_loader(dataset=dataset)
    assert again.state_dict() == states
    assert values(islice(again, 2)) == whole[2:4]
    dataset.set_dataloader_states(states)
    assert values(islice(again, 4)) == whole[2:]
    assert values(islice(resumed(again.state_after(3)), 1)) == whole[5:]


def test_batches_are_plain() -> None:
    """Without the states that they brought; a list keeps the samples' other fields."""
    (batch,) = islice(make_loader(), 1)
    assert list(batch) == ["data", "source_ids", "record_ids"]
    (batch,) = islice(make_loader(collate=mixed_collate), 1)
    assert type(batch) is list
    ours = ["__datasetname__", "__dprank__", "__index__", "__record__", "__seed__", "__workerid__"]
    assert sorted(batch[0]) == [*ours, "data"]


def test_lists_from_workers_and_their_states_are_those_of_a_stock_loader() -> None:
    """Though no cursor comes with a sample; also what is pulled and not received yet."""
    stock = DataLoader(make_dataset(cyclic=False), BATCH, num_workers=2, collate_fn=mixed_collate)
    loader, states = make_loader(2, dataset=make_dataset(cyclic=False), collate=mixed_collate), {}
    for number, (batch, whole) in enumerate(zip(loader, stock, strict=True), 1):
        states.update(to_state(whole))
        assert batch == [{name: value for name, value in sample.items() if name != "__cursor__"} for sample in whole]
        assert dict(loader.state_after(number)) == states
    assert number > 4


def test_what_cannot_be_sent_is_named_by_its_sample() -> None:
    """A worker says so at once, and nobody waits."""
    dataset = MergedDataset([named([{"callback": lambda: None}] * 4, name="a", percent=1)])
    loader = StreamLoader(dataset, 2, 1, collate=mixed_collate, multiprocessing_context="fork")
    with pytest.raises(Exception, match="sample 0, key 'callback': a function that cannot be pickled"):
        next(iter(loader))


def keeps_no_state(batch: list[dict]) -> dict:
    """Like many a collate function."""
    return {"data": torch.tensor([sample["data"] for sample in batch])}


def test_a_collate_without_states_is_refused() -> None:
    """At the first batch, not at the first checkpoint."""
    with pytest.raises(StateError, match="without its state") as caught:
        next(iter(make_loader(collate=keeps_no_state)))
    assert "TensorCollate" in caught.value.__notes__[0]


def test_the_ring_keeps_the_last_states() -> None:
    """At least 64, and says which; what it forgot is part of all that come later."""
    assert NUM_KEPT >= 64
    states = RecentStates(table_of({}))
    for number in range(NUM_KEPT + 3):
        states.add({f"worker/0/0/{number}": 0})
    assert len(states.after(3)) == 3
    assert len(states.after(NUM_KEPT + 3)) == NUM_KEPT + 3
    for n in (2, NUM_KEPT + 4, -1, 3.0, True):
        with pytest.raises(StateError, match=f"from 3 to {NUM_KEPT + 3}, got"):
            states.after(n)


def test_a_state_is_the_callers_own() -> None:
    """What it writes into it is not in those that come later."""
    loader = make_loader()
    values(islice(loader, 3))
    want = copy.deepcopy(loader.state_dict())
    loader.state_dict().clear()
    loader.state_after(0)["worker/0/0/0"] = 7
    assert loader.state_dict() == want
    loaded = make_loader()
    columns = LoadedStates(table_of(want))
    loaded.load_state_dict(columns)
    columns.update({"worker/0/0/0": 7})
    assert loaded.state_dict() == want


def test_it_is_no_data_loader() -> None:
    """Code that looks for those, to shard or replace them, leaves it alone."""
    assert not isinstance(make_loader(), DataLoader)


def test_a_stream_without_stretches_has_no_length() -> None:
    """And says what gives it one; list() and tuple() ask too."""
    with pytest.raises(TypeError, match="Give steps_per_epoch"):
        len(make_loader())
    assert len(list(make_loader(dataset=make_dataset(cyclic=False)))) == 10


@pytest.mark.parametrize("spread", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_cannot_be_copied(spread: Any) -> None:
    """A stream has one reader."""
    with pytest.raises(TypeError, match="StreamLoader: it reads a stream in this process"):
        spread(make_loader())


def test_an_older_iteration_is_refused() -> None:
    """It would take batches from the newer one; one that has ended just stays so."""
    loader = make_loader(steps_per_epoch=2)
    done = iter(loader)
    assert len(values(done)) == 2
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(RuntimeError, match="another iteration began"):
        next(older)
    assert len(values(newer)) == 1
    assert list(done) == []
    begun = iter(loader)
    loader.load_state_dict(loader.state_after(1))
    with pytest.raises(RuntimeError, match="states were loaded"):
        next(begun)
    assert len(values(loader)) == 1


class FailsOnce:
    """A process function that fails at its first call in all processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, record: dict) -> dict:
        if record["data"] == 104 and not self._path.exists():
            self._path.touch()
            raise OSError("the disk was away")
        return record


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_lost_by_an_error(num_workers: int, tmp_path: Path) -> None:
    """The next iteration reads again what the loop did not receive."""
    whole = values(islice(make_loader(num_workers), 12))
    dataset = make_dataset()
    dataset.datasets[1].single_process_fn = FailsOnce(tmp_path / "failed")
    loader = make_loader(num_workers, dataset=dataset)
    received: list[Any] = []
    with pytest.raises(OSError, match="the disk was away"):
        received.extend(loader)
    read = values(received)
    assert read == whole[: len(read)]
    assert loader.num_batches == len(read)
    read += values(islice(loader, 12 - len(read)))
    assert read == whole
    assert values(islice(resumed(loader.state_after(6), num_workers), 6)) == whole[6:]


def test_workers_end_at_once_where_one_failed(tmp_path: Path) -> None:
    """In torch's frames the error holds itself, and with it the iterator, until a collection finds them."""
    dataset = make_dataset()
    dataset.datasets[1].single_process_fn = FailsOnce(tmp_path / "failed")
    loader, others = make_loader(2, dataset=dataset), set(multiprocessing.active_children())
    gc.disable()
    try:
        with pytest.raises(OSError, match="the disk was away"):
            list(loader)
        assert set(multiprocessing.active_children()) <= others
    finally:
        gc.enable()


def test_options_of_the_stock_loader_are_passed_on() -> None:
    """Persistent workers among them, also where states are loaded between iterations."""
    options = {"persistent_workers": True, "prefetch_factor": 1, "multiprocessing_context": "fork", "timeout": 60}
    wanted = make_loader(2, dataset=make_dataset(cyclic=False))
    first, second = values(wanted), values(wanted)
    loader = make_loader(2, dataset=make_dataset(cyclic=False), **options)
    assert [values(loader), values(loader)] == [first, second]
    loader.load_state_dict(wanted.state_after(3))
    assert values(loader) == first[3:]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drop_last": True}, "'drop_last'.* would change what is delivered"),
        ({"shuffle": True}, "'shuffle'"),
        ({"steps_per_epoch": 0}, "expected steps_per_epoch to be an int from 1 on, got 0"),
        ({"uneven": "repeat"}, "expected uneven to be one of"),
        (
            {"collate_fn": list},
            r"unknown option 'collate_fn', did you mean 'collate'\?\n  It takes batch_size,",
        ),
        ({"dataset": DataLoader([1])}, "StreamLoader: expected a dataset, got a DataLoader of one\n  Give its dataset"),
        ({"dataset": iter([1])}, "StreamLoader: expected a dataset, got a list_iterator"),
        ({"dataset": [1, 2]}, "StreamLoader: expected a MergedDataset or a source, got list"),
    ],
)
def test_settings_are_checked(settings: dict, message: str) -> None:
    """Where the loader is made."""
    with pytest.raises(ValueError, match=message):
        make_loader(**settings)
    with pytest.raises(ValueError, match="expected batch_size to be an int from 1 on, got None"):
        StreamLoader(make_dataset(), None)


@pytest.mark.parametrize("kind", [StreamLoader, DataLoader])
@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_function_that_no_new_process_can_be_sent_is_named(kind: type) -> None:
    """With its source, where workers are not forks."""
    source = named([1, 2], name="a", percent=1, single_process_fn=lambda record: record)
    loader = kind(MergedDataset([source]), 2, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
        next(iter(loader))
    assert "source 'a': single_process_fn cannot be pickled" in "\n".join(caught.value.__notes__)


class Slow:
    """A map-style dataset that takes its time."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict:
        time.sleep(0.02)
        return {"data": index}


def test_it_says_how_long_the_loop_waited() -> None:
    """And how many batches it received."""
    loader = StreamLoader(MergedDataset([named(Slow(), name="slow", percent=1)]), 2)
    began = time.perf_counter()
    for _ in islice(loader, 3):
        time.sleep(0.2)
    assert loader.num_batches == 3
    assert 0.12 <= loader.wait_s < time.perf_counter() - began - 0.6
    loader.load_state_dict({})
    assert (loader.num_batches, loader.wait_s) == (0, 0.0)


def train(path: Path, pipe: Connection) -> None:
    """Send each batch, and save after each third."""
    fork_workers()
    trained, loader = 0, make_loader(2, steps_per_epoch=5)
    if path.exists():
        loader.load_state_dict(json.loads(path.read_text())["states"])
    while True:
        for batch in loader:
            trained += 1
            pipe.send(batch["data"].tolist())
            if trained % 3 == 0:
                saved = {"trained": trained, "states": loader.state_after(trained)}
                path.with_suffix(".new").write_text(json.dumps(saved))
                path.with_suffix(".new").replace(path)


def batches_until_killed(path: Path, number: int) -> list[list[int]]:
    """What a trainer sends that is killed after so many batches; it may send some more before it dies."""
    pipe, trainers = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=train, args=(path, trainers))
    process.start()
    trainers.close()
    batches = [pipe.recv() for _ in range(number)]
    process.kill()
    process.join()
    with pipe, suppress(EOFError, OSError):  # the last one may be cut
        while pipe.poll():  # its workers hold the other end for some seconds more
            batches.append(pipe.recv())
    return batches


def test_a_killed_trainer_goes_on(tmp_path: Path) -> None:
    """With what was saved last: the samples up to there and from there on are those of the uninterrupted run."""
    path, kept = tmp_path / "states.json", []
    for before_kill in (8, 11):
        batches = batches_until_killed(path, before_kill)
        kept += batches[: json.loads(path.read_text())["trained"]]
    assert kept == values(islice(make_loader(2), len(kept)))
    assert len(kept) >= 15


class Raises:
    """A source, or a function of one, that raises at some call of each of its kinds."""

    def __init__(self, error: type[BaseException], where: str) -> None:
        self._error, self._where = error, where

    def _call(self, where: str, value: Any = None) -> Any:
        if where == self._where:
            raise self._error("no driver")
        return value

    def __len__(self) -> int:
        return self._call("__len__", 6)

    def __getitem__(self, index: int) -> dict:
        return self._call("__getitem__", {"data": index})

    def single(self, record: dict) -> dict:
        return self._call("single_process_fn", record)

    def stream(self, records: Iterator[dict]) -> Iterator[dict]:
        return self._call("process_fn", records)

    def later(self, records: Iterator[dict]) -> Iterator[dict]:
        yield from records
        self._call("end of process_fn")


@pytest.mark.each_value
@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit])
@pytest.mark.parametrize("where", ["__len__", "__getitem__", "single_process_fn", "process_fn", "end of process_fn"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_whatever_a_source_raises_is_one_error_that_names_it(
    error: type[BaseException], where: str, num_workers: int
) -> None:
    """No stream ends early, no process with the code of a function; no worker counts as killed."""
    raises = Raises(error, where)
    functions = {"single_process_fn": raises.single, "process_fn": [raises.stream, raises.later]}
    dataset = MergedDataset([named(raises, name="shaky", percent=1, **functions)], cyclic=False)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        list(StreamLoader(dataset, 2, num_workers))
    told = "".join(traceback.format_exception(caught.value))
    assert "no driver" in told
    assert f"source 'shaky': {where.removeprefix('end of ').replace('__len__', 'its __len__')} " in told
    assert "was killed" not in told
