"""One process reads, and all of its group receive what it read, with the states."""

import gc
import json
import os
import random
import re
import signal
import sys
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist

from streamdata import (
    GroupLoader,
    JsonlIterableDataset,
    MergedDataset,
    StreamLoader,
    StreamState,
    TensorCollate,
    named,
    save_states,
    to_device,
    to_state,
)
from streamdata.delivery import group_loader
from streamdata.fields import STATE
from tests.ranks import CONTEXT, fork_workers
from tests.streams import Numbers

LIMIT_S = 600  # of a machine on which others work too


def dataset(rank: int = 0, size: int = 1, *, cyclic: bool = True, seed: int = 0) -> MergedDataset:
    """Two sources; a replica's rank."""
    made = MergedDataset([Numbers("a", 40, 3), Numbers("b", 9)], cyclic=cyclic, stop="all_exhausted", seed=seed)
    made.set_data_parallel(size, rank)
    return made


def values(batches: Any) -> list[list[int]]:
    """What is in them."""
    return [batch["value"].tolist() for batch in batches]


@pytest.fixture
def alone():
    """A process group of this process, as that of one member."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("options", [{}, {"steps_per_epoch": 7}, {"num_workers": 2}, {"cyclic": False}], ids=str)
def test_a_group_of_one_reads_as_its_loader_does(alone, options):
    """Through breaks, ends and stretches; states are of what came."""
    cyclic = options.pop("cyclic", True)
    plain = StreamLoader(dataset(cyclic=cyclic), 4, **options)
    grouped = GroupLoader(StreamLoader(dataset(cyclic=cyclic), 4, **options), alone)
    for count in (3, 1, 3, 100, 5, 2):
        assert values(islice(grouped, count)) == values(islice(plain, count))
        assert grouped.num_batches == plain.num_batches
        assert grouped.state_dict() == plain.state_dict()
    assert grouped.state_after(2) == plain.state_after(2)


def test_a_loop_that_knows_the_length_has_ended_the_stretch(alone):
    """The next one begins with its own batches."""
    grouped = GroupLoader(StreamLoader(dataset(), 4, steps_per_epoch=7), alone)
    plain = StreamLoader(dataset(), 4, steps_per_epoch=7)
    for _ in range(3):
        assert values(islice(grouped, 7)) == values(plain)


def test_it_goes_on_from_states_and_goes_back(alone):
    """What was on its way does not come."""
    want = values(islice(StreamLoader(dataset(), 4), 20))
    grouped = GroupLoader(StreamLoader(dataset(), 4), alone)
    assert values(islice(grouped, 9)) == want[:9]
    grouped.go_back(4)
    assert values(islice(grouped, 6)) == want[4:10]
    grouped.load_state_dict(grouped.state_after(2))
    assert grouped.num_batches == 0
    assert values(islice(grouped, 3)) == want[2:5]


def test_a_batch_that_cannot_be_sent_comes_again(alone):
    """After the error: nobody received it."""
    bad = iter([False, False, True])

    def collate(samples: list[dict]) -> dict:
        return TensorCollate()(samples) | ({"function": lambda: 0} if next(bad, False) else {})

    grouped = GroupLoader(StreamLoader(dataset(), 4, collate=collate), alone)
    found = []
    with pytest.raises(AttributeError, match="pickle"):
        found.extend(batch["value"].tolist() for batch in grouped)
    found += values(islice(grouped, 4))
    assert found[-6:] == values(islice(StreamLoader(dataset(), 4), 6))


def test_batches_that_are_on_a_device_are_refused(alone):
    """Others receive them in memory."""
    on_device = StreamLoader(
        dataset(), 4, collate=lambda samples: TensorCollate()(samples) | {"x": torch.ones(3, device="meta")}
    )
    with pytest.raises(ValueError, match="GroupLoader: expected tensors on the CPU, got one on meta\n"):
        next(iter(GroupLoader(on_device, alone)))


def test_states_within_a_checkpoint_of_torch_are_plain(alone, tmp_path):
    """It loads no class by default."""
    grouped = GroupLoader(StreamLoader(dataset(), 4), alone)
    list(islice(grouped, 3))
    torch.save({"stream": grouped.state_dict()}, tmp_path / "checkpoint.pt")
    assert torch.load(tmp_path / "checkpoint.pt")["stream"] == grouped.state_dict()


def test_a_pass_that_is_named_begins_at_once(alone):
    """Also an earlier one, whose states begin anew."""
    plain = StreamLoader(dataset(cyclic=False), 4)
    grouped = GroupLoader(StreamLoader(dataset(cyclic=False), 4), alone)
    for epoch in (0, 2, 1):
        for each in (grouped, plain):
            each.set_epoch(epoch)
            list(islice(each, 2))
        assert grouped.state_dict() == plain.state_dict()
        assert values(grouped) == values(plain)
        assert grouped.state_dict() == plain.state_dict()


@pytest.mark.parametrize("uneven", ["drop", "pad"])
def test_states_that_come_without_a_batch_come_too(alone, uneven):
    """What was left out at the end of a pass, or filled up."""
    plain = StreamLoader(dataset(1, 2, cyclic=False), 4, uneven=uneven)
    grouped = GroupLoader(StreamLoader(dataset(1, 2, cyclic=False), 4, uneven=uneven), alone)
    for _ in range(2):
        assert values(grouped) == values(plain)
        assert grouped.state_dict() == plain.state_dict()


class Counted(Numbers):
    """Counts what is read of it."""

    num_read = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.num_read += 1
        return super().__getitem__(index)


def test_it_reads_one_batch_ahead(alone):
    """However long a step takes."""
    source = Counted("a", 99)
    grouped = GroupLoader(StreamLoader(MergedDataset([source]), 4), alone)
    for number, _ in enumerate(islice(grouped, 3), 2):
        deadline = time.monotonic() + LIMIT_S
        while source.num_read < 4 * number and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        assert source.num_read == 4 * number


class Failing(Numbers):
    """Fails once."""

    has_failed = False

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 11 and not self.has_failed:
            self.has_failed = True
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def test_an_error_comes_as_it_is_and_the_loop_can_go_on(alone):
    """As with the loader alone."""
    want = values(islice(StreamLoader(MergedDataset([Numbers("a", 20)]), 4), 5))
    grouped = GroupLoader(StreamLoader(MergedDataset([Failing("a", 20)]), 4), alone)
    found = []
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(batch["value"].tolist() for batch in grouped)
    assert found + values(islice(grouped, 5 - len(found))) == want


def test_it_moves_batches_to_a_device(alone):
    """What is on its way there is not in the states."""
    want = values(islice(StreamLoader(dataset(), 4), 9))
    moved = to_device(GroupLoader(StreamLoader(dataset(), 4), alone), "cpu")
    assert values(islice(moved, 4)) == want[:4]
    again = to_device(GroupLoader(StreamLoader(dataset(), 4), alone), "cpu")
    again.load_state_dict(moved.state_dict())
    assert values(islice(again, 5)) == want[4:]
    with pytest.raises(ValueError, match="weights cannot be set where one process reads"):
        again.set_weights({"a": 1})


def test_an_older_iteration_takes_no_batches(alone):
    """A stream has one reader."""
    grouped = GroupLoader(StreamLoader(dataset(), 4), alone)
    old = iter(grouped)
    next(old)
    next(iter(grouped))
    with pytest.raises(RuntimeError, match="GroupLoader: another iteration began"):
        next(old)


def test_it_ends_its_threads_when_it_is_dropped(alone):
    """Whatever it had begun."""
    grouped = GroupLoader(StreamLoader(dataset(), 4), alone)
    next(iter(grouped))
    assert any(thread.name == "streamdata group" for thread in threading.enumerate())
    del grouped
    gc.collect()
    assert not any(thread.name == "streamdata group" for thread in threading.enumerate())


@pytest.mark.parametrize("group", [None, "tp", 4])
def test_what_is_no_group_is_refused(alone, group):
    """None would be all processes."""
    with pytest.raises(ValueError, match="GroupLoader: expected a process group or a DeviceMesh, got"):
        GroupLoader(StreamLoader(dataset(), 4), group)


def test_what_is_no_loader_is_refused(alone):
    """Such as one whose batches are on a device."""
    with pytest.raises(ValueError, match="GroupLoader: expected a StreamLoader, got"):
        GroupLoader(to_device(StreamLoader(dataset(), 4), "cpu"), alone)


def rows(folder: Path) -> MergedDataset:
    """JSONL files, read by the only replica."""
    sources = [named(JsonlIterableDataset(str(folder / f"{name}.jsonl")), name=name, percent=1) for name in "ab"]
    made = MergedDataset(sources, seed=5)
    made.set_data_parallel(1, 0)
    return made


def read_in_a_group(folder: Path, rank: int) -> dict[str, Any]:
    """Which files a process opens, what it receives, its states; it breaks, saves and resumes."""
    opened = set()
    shards = {str(folder / f"{name}.jsonl") for name in "ab"}
    sys.addaudithook(lambda event, details: opened.update(shards & {str(details[0])}) if event == "open" else None)
    grouped = GroupLoader(StreamLoader(rows(folder), 4, collate=texts), dist.group.WORLD)
    found = [*islice(grouped, 3), *islice(grouped, 2)]
    save_states(folder / "states", grouped.state_dict(), step=5)
    joined = StreamState(grouped).state_dict()
    resumed = GroupLoader(StreamLoader(rows(folder), 4, collate=texts), dist.group.WORLD)
    resumed.load_state_dict(grouped.state_after(3))
    found += islice(resumed, 4)
    resumed.go_back(1)
    found += islice(resumed, 3)
    if not grouped.is_reader:
        assert grouped.state_after(5) == grouped.state_dict()  # nobody else is asked
    states = (grouped.state_dict(), resumed.state_dict(), joined)
    return {"found": found, "states": states, "opened": opened, "is_reader": grouped.is_reader}


def texts(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Tensors of several dtypes, and what is none."""
    lengths = torch.tensor([len(sample["text"]) for sample in samples])
    of = {"text": [sample["text"] for sample in samples], "mean": float(lengths.float().mean())}
    state = {STATE: json.dumps(to_state(samples))}
    return {**of, "lengths": lengths, "half": (lengths.bfloat16(), lengths[:, None] > 4), **state}


def test_all_receive_what_one_reads(tmp_path, on_ranks):
    """Batches and states are the same; the others open no shard, and save nothing."""
    for name in "ab":
        lines = [json.dumps({"text": name * (number % 9)}) for number in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    want = list(islice(StreamLoader(rows(tmp_path), 4, collate=texts), 8))  # and the shards are indexed
    first, second = on_ranks(partial(read_in_a_group, tmp_path))
    assert (first["is_reader"], second["is_reader"]) == (True, False)
    assert first["states"] == second["states"]
    assert repr(first["found"]) == repr(second["found"])
    assert repr(first["found"]) == repr([*want[:5], *want[3:7], *want[4:7]])
    assert first["found"][0]["half"][0].dtype == torch.bfloat16
    assert (len(first["opened"]), second["opened"]) == (2, set())
    assert [path.name for path in (tmp_path / "states" / "step-5").iterdir()] == ["rank-0.states"]


def walk_at_random(rank: int) -> None:
    """Take, go back and load in one of three processes, each at a pace of its own; and in a plain loader."""
    for seed, options in enumerate([{}, {"steps_per_epoch": 7}, {"num_workers": 1}, {"uneven": "drop"}] * 3):
        shared, own = random.Random(seed), random.Random(f"{seed} {rank}")
        cyclic = "uneven" not in options
        plain = StreamLoader(dataset(cyclic=cyclic), 4, **options)
        grouped = GroupLoader(StreamLoader(dataset(cyclic=cyclic), 4, **options), dist.group.WORLD)
        for _ in range(40):
            time.sleep(own.choice([0, 0, 0.01]))
            count, back = shared.choice([1, 2, 3, 20]), max(0, plain.num_batches - shared.randint(0, 3))
            does = shared.choice(["take", "take", "take", "back", "load"])
            for each in (plain, grouped):
                if does == "back":
                    each.go_back(back)
                elif does == "load":
                    each.load_state_dict(plain.state_dict())
            if does == "take":
                assert values(islice(grouped, count)) == values(islice(plain, count))
            assert (grouped.num_batches, grouped.state_dict()) == (plain.num_batches, plain.state_dict())


@pytest.mark.long
def test_random_walks_are_those_of_a_plain_loader(on_ranks):
    """Whichever process is ahead of the others."""
    on_ranks(walk_at_random, 3)


def build_and_drop(rank: int) -> list[int]:
    """Connections and threads of a process after each of three loaders."""
    dist.new_group([0])  # the other process is in fewer groups
    found = []
    for _ in range(3):
        list(islice(GroupLoader(StreamLoader(dataset(), 4), dist.group.WORLD), 2))
        gc.collect()
        found.append(len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task")))
    return found


def test_its_connections_are_its_own(on_ranks):
    """Whatever other groups a process is in; and they end with it."""
    for first, *later in on_ranks(build_and_drop):
        assert set(later) == {first}


class Unsent:
    """Cannot be pickled."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("not to be sent")


def fail_in_a_group(rank: int) -> list[Any]:
    """What a process receives around an error of the reader, and of a batch that cannot be sent."""
    found: list[Any] = []
    for collate in (TensorCollate(), lambda samples: {"value": Unsent(), STATE: json.dumps(to_state(samples))}):
        made = MergedDataset([Failing("a", 20)])
        made.set_data_parallel(1, 0)
        grouped = GroupLoader(StreamLoader(made, 4, collate=collate), dist.group.WORLD)
        for _ in range(2):
            try:
                found += values(islice(grouped, 3))
            except (OSError, RuntimeError, TypeError) as error:
                found.append(f"{type(error).__name__}: {error}")
    return found


def test_an_error_of_the_reader_is_raised_in_all(on_ranks):
    """The loop can go on after it."""
    first, second = on_ranks(fail_in_a_group)
    prefix = "RuntimeError: GroupLoader: the group's reader has failed: "
    assert [str(one).removeprefix(prefix).splitlines()[0] for one in second] == [
        str(one).splitlines()[0] for one in first
    ]
    assert [one for one in first if isinstance(one, str)][-1] == "TypeError: not to be sent"
    assert sum(str(one).startswith(prefix) for one in second) == 3


def build_another(difference: str, rank: int) -> None:
    """A group whose second process differs."""
    made = dataset(rank if difference == "rank" else 0, 2, seed=rank if difference == "recipe" else 0)
    GroupLoader(StreamLoader(made, 4 + (difference == "batch_size" and rank)), dist.group.WORLD)


@pytest.mark.parametrize("difference", ["recipe", "rank", "batch_size"])
def test_processes_that_differ_are_refused(on_ranks, difference):
    """On all of them, before anything is read."""
    for rank, said in enumerate(on_ranks(partial(build_another, difference))):
        assert re.search(rf"GroupLoader: rank {1 - rank} of the default group differs .*'[^']*{difference}': ", said)


def die(folder: Path, victim: int, how: signal.Signals, beat_s: float, rank: int) -> None:
    """One of three processes dies, or stops, in the loop; the others note when they know."""
    group_loader._BEAT_S = beat_s
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=3)
    fork_workers()
    # A worker has the reader's connections, too, and must not keep them open.
    grouped = GroupLoader(StreamLoader(dataset(), 4, num_workers=1), dist.new_group([0, 1, 2]))
    try:
        for number, _ in enumerate(grouped):
            if number == 3 and rank == victim:
                (folder / "died").write_text(str(time.time()))
                os.kill(os.getpid(), how)
    except RuntimeError as error:
        (folder / str(rank)).write_text(f"{time.time()} {error}")
        os._exit(0)  # without waiting for the store, which may have died


def notes_of_death(folder: Path, victim: int, how: signal.Signals, beat_s: float) -> dict[int, tuple[float, str]]:
    """After how many seconds each of the others has raised which error."""
    processes = [CONTEXT.Process(target=die, args=(folder, victim, how, beat_s, rank)) for rank in range(3)]
    for process in processes:
        process.start()
    for rank, process in enumerate(processes):
        if rank != victim:
            process.join(LIMIT_S)
            assert process.exitcode == 0
    processes[victim].kill()
    processes[victim].join()
    died = float((folder / "died").read_text())
    notes = {rank: (folder / str(rank)).read_text().split(" ", 1) for rank in range(3) if rank != victim}
    return {rank: (float(when) - died, text) for rank, (when, text) in notes.items()}


@pytest.mark.parametrize("victim", [0, 2], ids=["reader", "member"])
@pytest.mark.parametrize(
    ("how", "beat_s"),
    [
        (signal.SIGKILL, 0.1),  # many heartbeats in a short test
        pytest.param(signal.SIGKILL, group_loader._BEAT_S, marks=pytest.mark.long),
        pytest.param(signal.SIGSTOP, group_loader._BEAT_S, marks=pytest.mark.long),
    ],
)
def test_the_death_of_one_ends_all_within_10_s(tmp_path, victim, how, beat_s):
    """Killed, or not running any more; the reader names who it is."""
    notes = notes_of_death(tmp_path, victim, how, beat_s)
    assert max(after for after, _ in notes.values()) < 10
    for rank, (_, text) in notes.items():
        known = victim if rank == 0 else 0  # the others hear of the reader alone
        assert text.startswith(f"GroupLoader: rank {known} of the default group is gone")
