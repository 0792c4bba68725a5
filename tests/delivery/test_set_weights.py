"""Weights that are set while a run goes on: exactly once, resumable anywhere, in small states."""

import json
import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import pytest
from torch import distributed
from torch.utils.data import DataLoader

from streamdata import MergedDataset, StreamLoader, merge_states, mixed_collate, named, report, to_device, to_state
from streamdata.mixing.tree import named_nodes
from streamdata.states.saving import store_of_group
from tests.ranks import run_on_ranks
from tests.streams import raises_in_worker, through_json

BATCH = 3
Calls = dict[int, dict[str, float]]
"""By the number of batches received, the weights that are set then."""


def flat(**settings: Any) -> MergedDataset:
    """Three sources of 30, 20 and 10 records."""
    sources = [named(list(range(30)), name="a", percent=0.5), named(list(range(20)), name="b", percent=0.3)]
    return MergedDataset([*sources, named(list(range(10)), name="c", percent=0.2)], seed=3, **settings)


def nested(**settings: Any) -> MergedDataset:
    """A source, and a mixture of two beside it, one of which is left out at first."""
    inner = [named(list(range(20)), name="b", percent=1), named(list(range(7)), name="c", percent=0)]
    lab = MergedDataset(inner, name="lab", percent=0.4, seed=1)
    return MergedDataset([named(list(range(30)), name="a", percent=0.6), lab], seed=4, **settings)


def scheduled(**settings: Any) -> MergedDataset:
    """Schedules in the top and below it."""
    inner = [
        named(list(range(20)), name="b", percent=[[0, 1], [60, 0.2]]),
        named(list(range(9)), name="c", percent=0.5),
    ]
    lab = MergedDataset(inner, name="lab", percent=0.5, seed=1)
    return MergedDataset([named(list(range(30)), name="a", percent=[[0, 1], [80, 0.1], [200, 1]]), lab], **settings)


def costly(**settings: Any) -> MergedDataset:
    """What a sample takes of its mixture differs."""
    sources = [named([{"n": 1 + k % 5} for k in range(30)], name="a", percent=0.5)]
    return MergedDataset([*sources, named([{"n": 9}] * 20, name="b", percent=0.5)], cost="n", seed=2, **settings)


TREES: dict[str, tuple[Callable[..., MergedDataset], list[dict[str, float]]]] = {
    "flat": (
        flat,
        [{"a": 0.1}, {"b": 0.0, "a": 0.3}, {"b": 0.6, "c": 0.01}, {"a": 0.5, "b": 0.3, "c": 0.2}, {"c": 3.0}],
    ),
    "nested": (
        nested,
        [{"lab.c": 0.5, "lab.b": 1.0}, {"a": 0.0, "lab": 1.0}, {"a": 0.2, "lab.b": 0.0, "lab.c": 2.0}, {"lab": 5.0}],
    ),
    "scheduled": (scheduled, [{"a": 0.3}, {"lab.b": 0.0}, {"lab": 0.1, "lab.c": 0.1}, {"a": 0.0}, {"lab.b": 2.0}]),
    "costly": (costly, [{"a": 0.05}, {"a": 1.0, "b": 0.0}, {"b": 0.7}, {"a": 0.0, "b": 1.0}, {"a": 1.0}]),
}


def names(batch: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """The source and index of each sample."""
    return [(one["__datasetname__"], one["__index__"]) for one in batch]


def records(batch: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """The source, epoch and number of each sample."""
    return [(one["__datasetname__"], *one["__record__"][1:3]) for one in batch]


def run(
    loader: StreamLoader, calls: Calls, count: int, told: Callable[[list[dict[str, Any]]], list[Any]] | None = None
) -> Iterator[list[Any]]:
    """So many batches of a loop that sets weights."""
    if not loader.num_batches and 0 in calls:
        loader.set_weights(calls[0])
    for number, batch in enumerate(islice(loader, count), 1):
        yield (told or names)(batch)
        if number in calls:
            loader.set_weights(calls[number])


def random_calls(rng: random.Random, choices: list[dict[str, float]], count: int) -> Calls:
    """Weights set at random times, sometimes two in a row."""
    return {rng.randrange(count): rng.choice(choices) for _ in range(rng.randrange(1, 8))}


@pytest.mark.each_value
@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_is_the_suffix_whenever_weights_are_set(kind: str, num_workers: int) -> None:
    make, choices = TREES[kind]
    for seed in range(3 if num_workers == 0 else 1):
        rng = random.Random(f"{kind} {seed}")
        calls, count = random_calls(rng, choices, 40), 48
        loader = StreamLoader(make(), BATCH, num_workers, mixed_collate)
        batches, states = [], [through_json(loader.state_dict())]
        for batch in run(loader, calls, count):
            batches.append(batch)
            # Before the call that follows, and (where there is one) after it.
            states.append(through_json(loader.state_dict()))
        for _ in range(4 if num_workers == 0 else 2):
            begin = rng.randrange(count)
            again = StreamLoader(make(), BATCH, num_workers, mixed_collate)
            again.load_state_dict(states[begin])
            later = {number - begin: weights for number, weights in calls.items() if number >= begin}
            assert list(run(again, later, count - begin)) == batches[begin:], (kind, seed, begin, calls)


def test_the_order_with_a_function_below_is_as_it_was() -> None:
    """A pin: weights are set twice, and of the mixture below nothing was drawn in between."""
    lab = MergedDataset(
        [named(list(range(30)), name="c", percent=1)], customized_yield_fn=iter, name="lab", percent=0.1
    )
    loader = StreamLoader(MergedDataset([named(list(range(40)), name="a", percent=1), lab]), 1, 0, mixed_collate)
    found = [batch[0][0][0] for batch in run(loader, {15: {"a": 0.1}, 16: {"a": 1.0}}, 40)]
    assert "".join(found) == "aaaaaaalaaaaaaaalaaaaaaaaaalaaaaaaaaaala"


@pytest.mark.parametrize("kind", TREES)
def test_weights_are_in_the_states_before_the_next_batch(kind: str) -> None:
    make, choices = TREES[kind]
    for weights in choices:
        loader = StreamLoader(make(), BATCH, 0, mixed_collate)
        list(run(loader, {}, 7))
        loader.set_weights(weights)
        again = StreamLoader(make(), BATCH, 0, mixed_collate)
        again.load_state_dict(through_json(loader.state_dict()))
        assert again.dataset.live == loader.dataset.live
        assert list(run(again, {}, 20)) == list(run(loader, {}, 20))


@pytest.mark.parametrize("kind", [kind for kind in TREES if kind != "scheduled"])
def test_each_epoch_comes_once_whatever_is_set_and_whatever_size_follows(kind: str) -> None:
    make, choices = TREES[kind]
    for seed in range(2):
        rng = random.Random(f"{kind} {seed}")
        found: Counter[tuple[str, int, int]] = Counter()
        states: dict[str, Any] = {}
        for size, count in ((3, 25), (2, 25), (3, 10), (1, 120)):
            calls, of_ranks = random_calls(rng, choices, count), []
            for rank in range(size):
                dataset = make()
                dataset.set_data_parallel(size, rank)
                loader = StreamLoader(dataset, BATCH, 0, mixed_collate)
                loader.load_state_dict(states)
                if size == 1:  # nothing is left out at last
                    calls = {0: dict.fromkeys(named_nodes(dataset), 1.0)}
                found.update(chain.from_iterable(run(loader, calls, count, records)))
                of_ranks.append(loader.state_dict())
            states = through_json(merge_states(*of_ranks))
        assert max(found.values()) == 1
        for source, node in named_nodes(make()).items():
            epochs = [epoch for name, epoch, _ in found if name == source]
            for epoch in range(max(epochs, default=0)):
                assert {n for name, of, n in found if (name, of) == (source, epoch)} == set(range(len(node)))


def test_shares_are_as_set_in_each_stretch() -> None:
    for seed in range(2):
        rng = random.Random(seed)
        loader = StreamLoader(flat(), 1, 0, mixed_collate)
        batches = iter(loader)
        drawn: Counter[str] = Counter()
        wanted: defaultdict[str, float] = defaultdict(float)
        for _ in range(25):
            weights = {name: rng.choice([0.01, 0.2, 1.0, 3.0]) for name in "abc"}
            loader.set_weights(weights)
            count = rng.choice([5, 20, 100])
            given = Counter(names(next(batches))[0][0] for _ in range(count))
            drawn += given
            for name, weight in weights.items():
                share = weight / sum(weights.values())
                wanted[name] += share * count
                assert abs(given[name] - share * count) <= 2 * (1 + 3 * share)
        # Nor do stretches add up: what a source was owed is carried over.
        assert all(abs(drawn[name] - wanted[name]) <= 8 for name in "abc"), (drawn, wanted)


def test_states_stay_small_and_calls_quick_however_often_weights_are_set() -> None:
    loader = StreamLoader(flat(), 1, 0, mixed_collate)
    batches, sizes = iter(loader), []
    for number in range(80):
        loader.set_weights({"a": 0.1 + number % 7, "c": number % 3})
        next(batches)
        if number in (20, 79):
            entries = {key: one for key, one in loader.state_dict().items() if not key.startswith("generation/")}
            sizes.append(len(json.dumps(entries)))
            assert len([key for key in loader.state_dict() if key.startswith("generation/")]) <= 4
    assert sizes[1] <= sizes[0] + 40  # numbers have more digits
    assert sizes[1] <= 300 * 4


def test_going_back_before_a_call_forgets_it() -> None:
    loader = StreamLoader(flat(), BATCH, 0, mixed_collate)
    batches = list(run(loader, {5: {"a": 0.0}}, 10))
    loader.go_back(6)
    assert list(run(loader, {}, 4)) == batches[6:]
    loader.go_back(4)
    plain = list(run(StreamLoader(flat(), BATCH, 0, mixed_collate), {}, 10))
    assert list(run(loader, {}, 6)) == plain[4:]
    assert not loader.dataset.live


def test_to_device_acts_after_what_the_loop_received() -> None:
    loader, ahead = (StreamLoader(flat(), BATCH, 0, mixed_collate) for _ in range(2))
    device = to_device(ahead, "cpu", ahead=3)
    expected = list(run(loader, {4: {"a": 0.0}, 6: {"a": 1.0}}, 12))
    found = []
    for number, batch in enumerate(islice(device, 12), 1):
        found.append(names(batch))
        if number in (4, 6):
            device.set_weights({"a": 0.0 if number == 4 else 1.0})
    assert found == expected


def test_a_percent_that_the_recipe_changes_wins(caplog: pytest.LogCaptureFixture) -> None:
    loader = StreamLoader(flat(), BATCH, 0, mixed_collate)
    list(run(loader, {3: {"a": 0.1, "b": 2.0}}, 6))
    states, dataset = through_json(loader.state_dict()), flat()
    dataset.datasets[0].percent = 0.9
    with caplog.at_level(logging.WARNING):
        dataset.set_dataloader_states(states)
    assert set(dataset.live) == {"b"}
    assert "'a': its percent in the recipe was 0.5 when 0.1 was set, and is 0.9 now" in caplog.text


def test_what_was_drawn_by_weights_that_are_forgotten_is_not_made_good() -> None:
    states: dict[str, Any] = {}
    # The first change of the recipe forgets what was set, and the others come after; then the size changes.
    recipes = [(1.0, 1.0, 150), (1.0, 0.9, 3), (1.1, 0.9, 3), (1.2, 0.9, 3), (1.2, 0.9, 60)]
    for number, (of_top, of_lab, count) in enumerate(recipes):
        inner = [named(list(range(9)), name=name, percent=of_lab) for name in "bc"]
        lab = MergedDataset(inner, name="lab", percent=1, seed=1)
        dataset = MergedDataset([named(list(range(9)), name="a", percent=of_top), lab], seed=4)
        dataset.set_data_parallel(1 + (number == 4), 0)
        loader = StreamLoader(dataset, 1, 0, mixed_collate)
        loader.load_state_dict(states)
        sets: Calls = {5: {"lab.b": 0.01}, 10: {"lab.b": 0.02}} if number == 0 else {}
        given = Counter(batch[0][0] for batch in run(loader, sets, count))
        states = through_json(loader.state_dict())
    assert abs(given["lab.b"] - given["lab.c"]) <= 4


def test_a_percent_stands_until_the_schedules_next_point() -> None:
    loader = StreamLoader(scheduled(), 1, 0, mixed_collate)
    loader.set_weights({"a": 0.0})
    given = [names(batch)[0][0] for batch in islice(loader, 200)]
    assert "a" not in given[:78]
    assert 30 <= given[80:].count("a") <= 70  # from 0.1 / 0.6 to 1 / 1.5 of 120
    assert report(loader.state_dict())["weight/a"] == 0.0


def test_a_stock_loader_goes_on_with_weights_of_the_dataset() -> None:
    dataset, states = flat(), {}
    for batch in islice(DataLoader(dataset, BATCH, collate_fn=mixed_collate), 5):
        states.update(to_state(batch))
    dataset.set_weights({"b": 0.0, "c": 0.0})
    dataset.set_dataloader_states(states)
    assert {sample["__datasetname__"] for sample in islice(dataset, 20)} == {"a"}
    dataset = flat()
    workers = DataLoader(dataset, BATCH, num_workers=1, collate_fn=mixed_collate, persistent_workers=True)
    next(iter(workers))
    dataset.set_weights({"b": 1.0})
    with raises_in_worker(RuntimeError, "states or weights were set after this worker began"):
        next(iter(workers))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, "expected percents by name"),
        ({"lab.d": 1}, "got 'lab.d'"),
        ({"a": -1}, "'a': expected 0 or a number"),
        ({"a": float("nan")}, "'a': expected 0 or a number"),
        ({"a": True}, "'a': expected 0 or a number"),
        ({"lab.b": 0}, "in the mixture 'lab', got 0 of all of lab.b, lab.c"),
        ({"a": 0, "lab": 0}, "in the mixture 'top', got 0 of all of a, lab"),
    ],
)
def test_what_is_refused_changes_nothing(weights: dict[str, float], expected: str) -> None:
    loader = StreamLoader(nested(), BATCH, 0, mixed_collate)
    batches = iter(loader)
    next(batches)
    states = loader.state_dict()
    with pytest.raises(ValueError, match=re.escape(expected)):
        loader.set_weights(weights)
    with pytest.raises(ValueError, match=re.escape(expected)):
        loader.dataset.set_weights(weights)
    assert loader.state_dict() == states
    assert not loader.dataset.live


def test_mixtures_by_size_or_with_an_inner_function_are_refused() -> None:
    sized = [named(list(range(9)), name=name, percent={"by": "records"}) for name in "ab"]
    loader = StreamLoader(MergedDataset(sized), BATCH, 0, mixed_collate)
    with pytest.raises(ValueError, match="expected percents of all sources of 'top'"):
        loader.set_weights({"a": 1.0})
    loader.set_weights({"a": 1.0, "b": 3.0})
    inner = MergedDataset([named([1, 2], name="b", percent=1)], name="lab", percent=1, customized_yield_fn=list)
    loader = StreamLoader(MergedDataset([named([1], name="a", percent=1), inner]), BATCH, 0, mixed_collate)
    with pytest.raises(ValueError, match="outside of mixtures with a customized_yield_fn"):
        loader.set_weights({"lab.b": 1.0})


def test_a_source_that_was_left_out_is_checked_as_if_the_recipe_had_it() -> None:
    schedules = [named([1, 2], name="b", percent=[[0, 1], [5, 2]]), named([1, 2], name="c", percent=1)]
    left_out = [
        (MergedDataset(schedules, name="lab", percent=0, customized_yield_fn=pack), "got a schedule"),
        (MergedDataset([named([1, 2], name="b", percent=1)], name="lab", percent=0, cyclic=False), "got cyclic=False"),
        (named([], name="lab", percent=0), "at least one record"),
    ]
    for lab, expected in left_out:
        loader = StreamLoader(MergedDataset([named([1, 2], name="a", percent=1), lab]), 1, 0, mixed_collate)
        batches = iter(loader)
        next(batches)
        with pytest.raises(Exception, match=expected):
            loader.set_weights({"lab": 1.0})
        assert not loader.dataset.live
        assert names(next(batches))[0][0] == "a"


def test_a_stream_stays_finite_or_endless() -> None:
    sources = [named(list(range(9)), name="a", percent=1), named(list(range(9)), name="b", percent=1, max_epochs=1)]
    loader = StreamLoader(MergedDataset(sources, stop="all_exhausted"), BATCH, 0, mixed_collate)
    with pytest.raises(ValueError, match="nothing goes on without end"):
        loader.set_weights({"a": 0.0})


def pack(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Joins two samples."""
    for one, other in zip(records, records, strict=False):
        yield {"data": (one["data"], other["data"])}


def test_a_top_with_a_function_draws_its_burst_anew() -> None:
    loader = StreamLoader(flat(customized_yield_fn=pack), BATCH, 0, mixed_collate)
    batches, states = [], []
    for number, batch in enumerate(islice(loader, 30), 1):
        batches.append([sample["data"] for sample in batch])
        if number in (4, 5, 11, 20):
            loader.set_weights({"a": 0.05 * number, "b": 1.0})
        states.append(through_json(loader.state_dict()))
    for begin in (4, 5, 9, 12, 21):
        again = StreamLoader(flat(customized_yield_fn=pack), BATCH, 0, mixed_collate)
        again.load_state_dict(states[begin - 1])
        found = []
        for number, batch in enumerate(islice(again, 30 - begin), begin + 1):
            found.append([sample["data"] for sample in batch])
            if number in (4, 5, 11, 20):
                again.set_weights({"a": 0.05 * number, "b": 1.0})
        assert found == batches[begin:]


def test_a_mixture_with_an_inner_function_has_its_share_however_often_weights_are_set() -> None:
    inner = [named(list(range(20)), name="b", percent=1), named(list(range(7)), name="c", percent=1)]
    lab = MergedDataset(inner, name="lab", percent=1, customized_yield_fn=pack)
    loader = StreamLoader(MergedDataset([named(list(range(30)), name="a", percent=1), lab]), 1, 0, mixed_collate)
    batches, given = iter(loader), []
    for number in range(60):
        loader.set_weights({"lab": 0.2 + 0.001 * (number % 7)})
        given.append(next(batches)[0]["__datasetname__"])
    assert abs(len(given) - given.count("a") - 10) <= 2


def finite(rank: int, size: int, uneven: str = "drop", of_b: int = 25) -> StreamLoader:
    """A pass of two sources."""
    sources = [named(list(range(40)), name="a", percent=1), named(list(range(100, 100 + of_b)), name="b", percent=1)]
    dataset = MergedDataset(sources, seed=1, cyclic=False, stop="all_exhausted")
    dataset.set_data_parallel(size, rank)
    return StreamLoader(dataset, BATCH, 0, mixed_collate, uneven=uneven)


def test_a_pass_that_has_ended_stays_so_when_a_source_comes_back() -> None:
    loader = finite(0, 1)
    batches = iter(loader)
    loader.set_weights({"b": 0.0})
    for _ in range(-(-40 // BATCH)):  # all of a, and the last sample says so
        next(batches)
    loader.set_weights({"b": 1.0})
    again = finite(0, 1)
    again.load_state_dict(through_json(loader.state_dict()))
    assert not list(batches)
    assert [records(batch) for batch in loader] == [records(batch) for batch in again]


def on_rank(rank: int) -> dict[str, Any]:
    """What a rank of three sees."""
    found: dict[str, Any] = {"errors": []}
    dataset = flat()
    dataset.set_data_parallel(3, rank)
    loader = StreamLoader(dataset, BATCH, 0, mixed_collate)
    batches = iter(loader)
    for _ in range(3 + (rank == 2)):
        next(batches)
    for weights in ({"a": 0.0}, {"a": 0.0, "b": float(rank)}, {"a": -1.0} if rank == 1 else None):
        try:  # another number of batches; other weights; a bad one
            loader.set_weights(weights)
        except (RuntimeError, ValueError) as error:
            found["errors"].append(str(error).partition("\n")[0])
        if rank == 2 and len(found["errors"]) == 1:
            loader.go_back(3)
            batches = iter(loader)
    if rank != 1:  # it does not come
        with pytest.raises(RuntimeError, match="rank 1 did not call within 1 s"):
            loader.set_weights({"a": 0.0} if rank == 0 else None, timeout_s=1)
    assert not dataset.live
    distributed.barrier()
    if rank == 1:
        with pytest.raises(RuntimeError, match="rank 1 did not call"):  # too late
            loader.set_weights(timeout_s=20)
    loader.set_weights({"a": 0.0, "c": 3.0} if rank == 0 else None)
    found["keys"] = []
    for _ in range(2):
        loader.set_weights({"a": 0.0, "c": 3.0})
        distributed.barrier()
        found["keys"].append(store_of_group().num_keys())
        distributed.barrier()
    found["live"] = {path: held.percent for path, held in dataset.live.items()}
    found["after"] = [names(next(batches)) for _ in range(5)]
    pass_of = finite(rank, 3)
    left = iter(pass_of)
    counted = [names(next(left)) for _ in range(2)]
    pass_of.set_weights({"b": 5.0})
    found["finite"] = counted + [names(batch) for batch in left]
    filled = finite(rank, 3, "pad", of_b=10)  # rank 0 has four of them, and the others three
    filled.set_weights({"a": 0.0})
    left = iter(filled)
    counted = [next(left) for _ in range(2)]
    filled.set_weights({"a": 1.0})  # after a batch that only fills up, but for rank 0
    found["filled"] = [
        (sample["__datasetname__"], sample["__index__"])
        for sample in chain.from_iterable((*counted, *left))
        if not sample.get("__padding__")
    ]
    return found


@pytest.mark.parametrize("size", [3])
def test_ranks_agree_or_none_changes_anything(tmp_path: Any, size: int) -> None:
    ranks = run_on_ranks(tmp_path, on_rank, size)
    for found in ranks:
        assert (
            found["errors"][0] == "set_weights: rank 2 has received 4 batches, rank 0 3; no rank has changed anything"
        )
        assert "rank 1 sets {'a': 0.0, 'b': 1.0}, rank 0 {'a': 0.0, 'b': 0.0}" in found["errors"][1]
        assert found["live"] == {"a": 0.0, "c": 3.0}
        assert found["keys"][0] == found["keys"][1]  # in the store nothing is left of many calls
        assert {source for batch in found["after"] for source, _ in batch} == {"b", "c"}
    assert all("'a': expected 0 or a number" in found["errors"][2] for found in ranks)
    # Of the pass each record came once, and all ranks had as many batches.
    assert len({len(found["finite"]) for found in ranks}) == 1
    records = Counter(chain.from_iterable(chain.from_iterable(found["finite"] for found in ranks)))
    assert set(records.values()) == {1}
    records = Counter(chain.from_iterable(found["filled"] for found in ranks))
    assert len(records) == 50
    assert set(records.values()) == {1}


def test_ranks_without_a_process_group_set_endless_streams_alone() -> None:
    with pytest.raises(ValueError, match="no process group"):
        finite(0, 2).set_weights({"a": 1.0})
    dataset = scheduled()
    dataset.set_data_parallel(2, 0)
    with pytest.raises(ValueError, match="no process group"):
        StreamLoader(dataset, BATCH, 0, mixed_collate).set_weights({"lab": 1.0})
