"""Real DataLoader workers under each start method: resume, passes, kills, and what workers must not decide."""

import copy
import multiprocessing
import os
import signal
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from streamdata import BlendableDataset, MergedDataset, mixed_collate, to_state
from streamdata.states.cursor import Entry
from tests.mixing.test_resume import Packer, irregular_stream
from tests.ranks import fork_workers
from tests.streams import Numbers, NumbersAhead, loaded, plain, raises_in_worker, through_json

START_METHODS = ["fork", "spawn", "forkserver"]
CONTEXT = torch.multiprocessing.get_context("forkserver")


def make():
    """A mixture with a stateful function, an irregular one, a nested mixture and look-ahead."""
    inner = MergedDataset([NumbersAhead("c", 9), Numbers("d", 5)])
    inner.name, inner.percent = "inner", 1
    return MergedDataset(
        [Numbers("a", 40, 2, process_fn=Packer()), Numbers("b", 30, process_fn=irregular_stream), inner], seed=8
    )


def loader(dataset, method, num_workers=2, batch_size=3, **options):
    """A stock DataLoader."""
    context = method if num_workers else None
    return DataLoader(
        dataset,
        batch_size,
        num_workers=num_workers,
        collate_fn=mixed_collate,
        multiprocessing_context=context,
        **options,
    )


# A worker that is spawned imports torch for itself, for two to three seconds: where that is all that differs, few are.
@pytest.mark.parametrize(
    ("num_workers", "legs"),
    [
        (2, [("fork", 3), ("fork", 4), ("fork", 7)]),
        (2, [("forkserver", 3), ("forkserver", 4), ("forkserver", 7)]),
        pytest.param(1, [("fork", 3), ("spawn", 4), ("fork", 7)], marks=pytest.mark.long),
    ],
)
def test_resume_is_exact_with_real_workers(num_workers, legs):
    """The batches are those of the simulated lanes; a resume goes on with them, a second resume too."""
    want = [plain(batch) for batch in islice(loaded(make(), num_workers, 3), 14)]
    states, got = {}, []
    for method, leg in legs:
        dataset = make()
        dataset.set_dataloader_states(through_json(states))
        for batch in islice(loader(dataset, method, num_workers), leg):
            got.append(plain(batch))
            states.update(to_state(batch))
    assert got == want


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
def test_three_workers_and_prefetch_resume_exactly():
    """Only what the trainer received counts, however far the workers ran ahead."""
    want = [plain(batch) for batch in islice(loaded(make(), 3, 2), 20)]
    states = {}
    for batch in islice(loader(make(), "fork", 3, 2, prefetch_factor=5), 7):
        states.update(to_state(batch))
    dataset = make()
    dataset.set_dataloader_states(through_json(states))
    assert [plain(batch) for batch in islice(loader(dataset, "fork", 3, 2), 13)] == want[7:]


def test_no_worker_and_one_worker_are_the_same_topology():
    """States of one resume in the other."""
    states = {}
    for batch in islice(loader(make(), "fork", 1), 3):
        states.update(to_state(batch))
    dataset = make()
    dataset.set_dataloader_states(states)
    want = [plain(batch) for batch in islice(loaded(make(), 0, 3), 8)]
    assert [plain(batch) for batch in islice(loader(dataset, None, 0), 5)] == want[3:]


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("forkserver", 2)])
def test_set_epoch_reaches_persistent_workers(method, num_workers):
    """The next iteration of living workers is the new pass."""
    dataset = MergedDataset([Numbers("a", 12)], cyclic=False)
    batches = loader(dataset, method, num_workers, 2, persistent_workers=True)
    passes = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        passes.append([sample["value"] for batch in batches for sample in batch])
    assert [sorted(values) for values in passes] == [list(range(12))] * 3
    assert passes[0] == passes[2] != passes[1]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_states_set_while_workers_iterate_leave_them_alone(method):
    """The old iterator goes on as it would have; one that is resumed beside it goes on from the states."""
    want = [plain(batch) for batch in islice(loaded(make(), 2, 3), 9)]
    dataset, states, got = make(), {}, []
    old = iter(loader(dataset, method))
    for batch in islice(old, 3):
        got.append(plain(batch))
        states.update(to_state(batch))
    dataset.set_dataloader_states(states)
    resumed = iter(loader(dataset, method))
    for beside in want[3:9]:
        got.append(plain(next(old)))
        assert plain(next(resumed)) == beside
    assert got == want


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_persistent_worker_does_not_begin_again_with_old_states(method):
    """It keeps what it was made with, so that the new states would be ignored."""
    dataset = MergedDataset([Numbers("a", 12)], cyclic=False)
    batches = loader(dataset, method, 1, 2, persistent_workers=True)
    states = to_state([sample for batch in batches for sample in batch][:5])
    dataset.set_dataloader_states(states)
    with raises_in_worker(RuntimeError, "states or weights were set after this worker began"):
        next(iter(batches))


def test_states_can_be_set_again_once_workers_have_gone():
    """A finished DataLoader is no hindrance."""
    dataset = make()
    states = {}
    for batch in islice(loader(dataset, "fork"), 3):
        states.update(to_state(batch))
    dataset.set_dataloader_states(states)
    want = [plain(batch) for batch in islice(loaded(make(), 2, 3), 5)]
    assert [plain(batch) for batch in islice(loader(dataset, "fork"), 2)] == want[3:]


def change_rank(worker):
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "1", "2"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_the_rank_is_found_in_the_trainer_not_in_the_worker(method, monkeypatch):
    """What a worker's environment says later changes nothing."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    batch = next(iter(loader(make(), method, 1, worker_init_fn=change_rank)))
    assert {sample["__dprank__"] for sample in batch} == {2}


class Dies(Numbers):
    """A worker is killed at its record, as for want of memory."""

    def __init__(self, fatal):
        super().__init__("a", 50)
        self.fatal = fatal

    def __getitem__(self, index):
        if index == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def train_slowly(folder, method, fatal):
    """A trainer of its own, which has the fork server of its own that it would have as a script."""
    os.dup2(os.open(folder / "errors", os.O_CREAT | os.O_WRONLY), 2)
    multiprocessing.forkserver._forkserver.__init__()
    multiprocessing.set_forkserver_preload(["tests.streams"])
    num_workers = 1 if method == "spawn" else 2  # each that is spawned imports torch for itself
    iterator = iter(loader(MergedDataset([Dies(fatal)]), method, num_workers, 4))
    next(iterator)
    (folder / "written").write_text(" ".join(str(worker.pid) for worker in iterator._workers))
    (folder / "written").rename(folder / "workers")
    for _ in iterator:
        time.sleep(0.01)


def start_trainer(folder, method, fatal):
    """Start it; return it with the process ids of its workers."""
    trainer = CONTEXT.Process(target=train_slowly, args=(folder, method, fatal))
    trainer.start()
    while trainer.is_alive() and not (folder / "workers").exists():
        time.sleep(0.02)
    return trainer, [int(pid) for pid in (folder / "workers").read_text().split()]


def lives(pid):
    """Whether a process runs; not if it has ended, and nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_gone(pids, within_s=60):
    """None of these processes lives on."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and any(map(lives, pids)):
        time.sleep(0.05)
    assert pids
    assert not [pid for pid in pids if lives(pid)]


# Those that are spawned are killed by tests.faults.killed_workers.
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_killed_worker_is_an_error_within_seconds(method, tmp_path):
    """Not a hang, and no process is left."""
    trainer, workers = start_trainer(tmp_path, method, fatal=5)
    trainer.join(60)
    assert trainer.exitcode == 1
    errors = (tmp_path / "errors").read_text()
    # Usually the DataLoader says that a worker was killed; now and then it finds the dead worker's socket first.
    assert any(text in errors for text in ("killed by signal", "exited unexpectedly", "ConnectionResetError"))
    assert_gone(workers)


# Ctrl-C reaches the trainer alone, which ends its workers in one way, however they were started.
@pytest.mark.parametrize(
    ("number", "method"),
    [(signal.SIGINT, "fork"), *((signal.SIGKILL, method) for method in START_METHODS)],
)
def test_no_worker_outlives_its_trainer(method, number, tmp_path):
    """Ctrl-C is a clean stop within seconds; even a killed trainer leaves no orphan."""
    trainer, workers = start_trainer(tmp_path, method, fatal=-1)
    os.kill(trainer.pid, number)
    trainer.join(60)
    assert trainer.exitcode not in (0, None), (tmp_path / "errors").read_text()
    # How soon exactly is measured by tests.faults.killed_trainers: here other processes may take all the time there is.
    assert_gone(workers)


def test_a_stopped_worker_is_an_error_after_the_loaders_timeout(monkeypatch):
    """Without `timeout=` the trainer waits until it goes on, as under any DataLoader."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    batches = iter(loader(MergedDataset([Numbers("a", 50)]), "fork", 1, timeout=60))
    next(batches)
    batches._timeout = 1  # no sooner: on a busy machine a worker takes a while to begin
    (worker,) = batches._workers
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="timed out after 1"):
        list(batches)
    os.kill(worker.pid, signal.SIGCONT)  # so that it ends with its loader


def train_by_index(folder):
    """A trainer whose workers are asked for samples by their index, and are told nothing else of ours."""
    fork_workers()
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 600  # torch's own watchdog looks no more
    iterator = iter(DataLoader(BlendableDataset([range(1000)], [1.0], 10**6), 4, num_workers=1))
    next(iterator)
    (folder / "workers").write_text(str(iterator._workers[0].pid))
    time.sleep(60)


def test_a_worker_of_a_map_style_dataset_ends_with_its_trainer(tmp_path):
    """Long before torch's own watchdog looks."""
    trainer = CONTEXT.Process(target=train_by_index, args=(tmp_path,))
    trainer.start()
    while not (tmp_path / "workers").exists() or not (tmp_path / "workers").read_text():
        time.sleep(0.02)
    trainer.kill()
    assert_gone([int((tmp_path / "workers").read_text())])
    trainer.join()


def train(rank, dataset, results):
    """A trainer of its own, as torch.multiprocessing starts it; it received everything by pickle."""
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
    dataset.set_epoch(rank)
    batch = next(iter(loader(dataset, "fork" if rank else "forkserver", 1)))
    dataset.set_epoch(5 + rank)
    sample = next(iter(dataset))
    lane = Entry(*sample["__cursor__"][0]).node.lane
    results.put((rank, [s["__dprank__"] for s in batch], sample["__dprank__"], lane.epoch_pass))


def test_trainers_that_received_the_dataset_are_ranks_of_their_own():
    """The launcher's rank does not come with it, and one trainer's pass is not the other's."""
    results = CONTEXT.SimpleQueue()
    arguments = (MergedDataset([Numbers("a", 50)]), results)
    torch.multiprocessing.start_processes(train, arguments, nprocs=2, start_method="forkserver")
    assert sorted(results.get() for _ in range(2)) == [(0, [0] * 3, 0, 5), (1, [1] * 3, 1, 6)]


def test_a_copy_has_its_own_control():
    """A deep copy's passes reach its own persistent workers, and nobody else's."""
    original = MergedDataset([Numbers("a", 12)], cyclic=False)
    dataset = copy.deepcopy(original)
    batches = loader(dataset, "fork", 2, 2, persistent_workers=True)
    passes = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        passes.append([sample["value"] for batch in batches for sample in batch])
    assert passes[0] != passes[1]
    assert original._control.epoch_pass is None


def test_errors_of_a_worker_arrive_with_their_place():
    """Type, source and record."""

    class Fails(Numbers):
        def __getitem__(self, index):
            raise OSError(f"cannot read {index}")

    with raises_in_worker(OSError, "source 'a': __getitem__ failed at index"):
        next(iter(loader(MergedDataset([Fails("a", 9)]), "fork")))


def test_tensors_of_samples_arrive_writable():
    """Through mixed_collate, as an ordinary list of dicts."""

    class Tensors(Numbers):
        def __getitem__(self, index):
            return {"x": torch.full((3,), index)}

    batch = next(iter(loader(MergedDataset([Tensors("a", 9)]), "fork")))
    batch[0]["x"] += 1
    assert type(batch) is list
    assert type(batch[0]) is dict


def test_an_iterator_that_is_alive_as_python_ends_says_nothing(python):
    """By then modules that it would need may be gone."""
    script = """
from streamdata import MergedDataset, named
from concurrent.futures import thread
iterator = iter(MergedDataset([named([1, 2, 3], name="a", percent=1)]))
next(iterator)
thread.queue = None
"""
    done = python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
