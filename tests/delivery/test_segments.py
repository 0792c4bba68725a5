import gc
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from streamdata.delivery import collate, mixed_collate, segments

pytestmark = pytest.mark.skipif(not segments.can_lend(), reason="this system has no files in memory")

SIZE = 20_000
"""Numbers in a sample: more bytes than go through the pipe."""


class Numbered(Dataset[dict[str, Any]]):
    """Sample i is an array full of i, and what its worker has open."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((SIZE,), index), "open": own_segments(), "pid": os.getpid()}


def own_segments() -> tuple[int, int]:
    """How many segments this process may lend, and how many files of theirs it has open."""
    links = [target(name) for name in os.listdir("/proc/self/fd")]
    lender = segments._lender.made
    mine = len(lender.segments) if lender is not None else 0
    return mine, sum("memfd:streamdata" in link for link in links)


def target(name: str) -> str:
    """What an open file is; nothing if another thread just closed it."""
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        return ""


def mapped() -> int:
    """How many segments this process has mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:streamdata")


def load(length: int, num_workers: int = 1, **options: Any) -> DataLoader[Any]:
    """Batches of one sample each."""
    return DataLoader(Numbered(length), 1, num_workers=num_workers, collate_fn=mixed_collate, timeout=60, **options)


def is_whole(batch: list[dict[str, Any]], number: int) -> bool:
    """Whether a batch is the one that was sent."""
    return bool((batch[0]["x"] == number).all())


class Worker:
    """Stands for the worker's process where worker and trainer are this one."""

    def __init__(self) -> None:
        self.pid = os.getpid()


@pytest.fixture
def lender(monkeypatch: pytest.MonkeyPatch) -> segments._Lender:
    """This process lends to itself, batches of any size."""
    return lend_to_oneself(monkeypatch)


def lend_to_oneself(patch: pytest.MonkeyPatch) -> segments._Lender:
    """Until the patch is undone."""
    children = [Worker()]
    patch.setattr(multiprocessing, "active_children", lambda: children)
    patch.setattr(segments._lender, "made", segments._Lender())
    patch.setattr(collate, "SMALL_BYTES", 0)
    return segments._lender.get()


def send(value: Any) -> Any:
    """What arrives of a value."""
    return pickle.loads(ForkingPickler.dumps(collate.pack([{"x": value}])))[0]["x"]


def test_segments_are_lent_again(lender: segments._Lender) -> None:
    """One segment, whose file is sent once, serves all batches that are used one after another."""
    addresses = {send(torch.full((SIZE,), number)).data_ptr() for number in range(50)}
    assert len(addresses) == 1
    assert len(lender.segments) == 1
    assert pickle.dumps(collate.pack([{"x": torch.zeros(9)}])).count(b"DupFd") == 0


def test_bytes_alone_give_their_segment_back_at_once(lender: segments._Lender) -> None:
    """They are copied out, so a kept batch keeps no segment."""
    kept = [send(bytes([number]) * SIZE) for number in range(50)]
    assert kept == [bytes([number]) * SIZE for number in range(50)]
    assert len(lender.segments) == 1


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x,
    "slice of a slice": lambda x: x[10:][:5],
    "view of another dtype": lambda x: x.reshape(-1, 2).T.view(torch.float64)[0],
    "detached": lambda x: x.detach().requires_grad_(False).unflatten(0, (2, -1)),
    "numpy": lambda x: x.numpy(),
    "slice of numpy": lambda x: x.numpy()[5:][::3].reshape(-1, 1)[2:],
    "memoryview": lambda x: x.numpy().data[3:9],
    "numpy over a memoryview": lambda x: np.frombuffer(x.numpy().data, np.int32)[4:],
    "dlpack": lambda x: torch.from_dlpack(x)[1:],
    "storage": lambda x: x.untyped_storage(),
    "container": lambda x: {"deep": [(x[7:8],)]},
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "chunk": lambda x: x.split(100)[3],
    "closure": lambda x: lambda: x[:2],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray], ids=["from tensor", "from array"])
def test_memory_is_not_filled_while_anything_views_it(lender: segments._Lender, view: Any, kind: type) -> None:
    """Whatever is left of a batch keeps its segment from being lent; with the last view it is free."""
    sent = torch.full((SIZE,), 7)
    arrived = send(sent if kind is torch.Tensor else sent.numpy())
    kept = view(arrived if kind is torch.Tensor else torch.from_numpy(arrived))
    del arrived
    for number in range(5):
        send(torch.full((SIZE,), number))
    first, second = lender.segments
    assert first.memory[0] == 1
    assert second.memory[0] == 0
    assert (first.memory[64 : 64 + 8 * SIZE].view(np.int64)[-SIZE // 2 :] == 7).all()
    del kept
    assert first.memory[0] == 0


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 30)), max_size=60))
def test_batches_stay_as_they_were_for_as_long_as_they_are_kept(plan: list[tuple[int, int]]) -> None:
    """Of any sizes, each kept for any number of further batches; segments stay few and none is forgotten."""
    kept: list[tuple[int, int, torch.Tensor]] = []
    with pytest.MonkeyPatch.context() as patch:
        lender = lend_to_oneself(patch)
        for now, (size, how_long) in enumerate(plan):
            kept = [(until, number, x) for until, number, x in kept if until >= now]
            kept.append((now + how_long, now, send(torch.full((size,), now % 256, dtype=torch.uint8))))
            assert all((x == number % 256).all() for _, number, x in kept)
            assert len(lender.segments) <= segments.MAX_SEGMENTS
            assert set(segments._maps[lender.name]) == {segment.number for segment in lender.segments}
    assert not segments._maps


def test_pinned_batches_give_their_segment_back_at_once(
    monkeypatch: pytest.MonkeyPatch, lender: segments._Lender
) -> None:
    """The pinning thread copies each batch, and what is kept keeps no segment."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    kept: list[torch.Tensor] = []
    pin = threading.Thread(
        name="Thread-1 (_pin_memory_loop)", target=lambda: kept.extend(send(torch.full((9,), k)) for k in range(20))
    )
    pin.start()
    pin.join()
    assert [x.tolist() for x in kept] == [[number] * 9 for number in range(20)]
    assert len(lender.segments) == 1


def test_a_segment_too_small_is_replaced(lender: segments._Lender) -> None:
    """Growing batches leave no trail; the trainer's map goes with the segment."""
    before = mapped()
    for size in (100, 10_000, 200_000, 3_000_000):
        send(torch.zeros(size))
    assert [segment.capacity for segment in lender.segments] == [1 << 24]
    assert list(segments._maps[lender.name]) == [3]
    assert mapped() - before == 2  # the worker's and the trainer's


def test_the_smallest_that_is_large_enough_is_lent(lender: segments._Lender) -> None:
    """A small batch does not take a large segment."""
    large, small = send(torch.zeros(SIZE)), send(torch.zeros(100))
    addresses = large.data_ptr(), small.data_ptr()
    del large, small
    small = send(torch.zeros(50))
    assert (send(torch.zeros(SIZE)).data_ptr(), small.data_ptr()) == addresses


def test_batches_that_never_arrive_cost_at_most_the_bound_of_segments(lender: segments._Lender) -> None:
    """A parcel that is dropped on its way keeps a segment in use, until that is retired."""
    before = own_segments()[1]
    for number in range(100):
        collate.pack([{"x": torch.full((SIZE,), number)}])
    assert len(lender.segments) == segments.MAX_SEGMENTS
    assert own_segments()[1] - before == segments.MAX_SEGMENTS
    assert send(torch.arange(9)).tolist() == list(range(9))


def test_a_strangers_segments_are_not_kept(monkeypatch: pytest.MonkeyPatch, lender: segments._Lender) -> None:
    """Nobody could tell when their process is gone: each is mapped while it is viewed, and never lent again."""
    monkeypatch.setattr(multiprocessing, "active_children", list)
    maps, before = dict(segments._maps), mapped()
    for number in range(40):
        assert (send(torch.full((SIZE,), number)) == number).all()
    assert segments._maps == maps
    assert mapped() - before == len(lender.segments) == segments.MAX_SEGMENTS


def test_a_fork_shares_views_so_neither_side_gives_them_back(lender: segments._Lender) -> None:
    """The child may still read what the parent drops, and the other way round."""
    both, parents = send(torch.full((SIZE,), 1)), send(torch.full((SIZE,), 2))
    here, there = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        del parents  # must not free what the parent views
        there.send(here.poll(60) and here.recv() and bool((both == 1).all()))
        os._exit(0)
    del both
    sent = [send(torch.full((SIZE,), number)) for number in range(5)]
    there.send(True)
    os.waitpid(pid, 0)
    assert (parents == 2).all()
    assert [x[-1].item() for x in sent] == list(range(5))
    assert here.recv() is True


def test_what_a_worker_forks_has_segments_of_its_own(lender: segments._Lender) -> None:
    """It would else fill the memory of its parent's batches."""
    segment_of_parent = send(torch.full((SIZE,), 1))
    del segment_of_parent
    pid = os.fork()
    if pid == 0:
        collate.pack([{"x": torch.full((SIZE,), 2)}])
        os._exit(0)
    os.waitpid(pid, 0)
    assert lender.segments[0].memory[0] == 0
    assert (lender.segments[0].memory[-8:] != 2).all()


def test_a_write_that_stops_early_goes_on(monkeypatch: pytest.MonkeyPatch, lender: segments._Lender) -> None:
    """One call may write less than it was given."""
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, pieces, offset: whole(file, [pieces[0][:7]], offset))
    assert torch.equal(send(torch.arange(50_000)), torch.arange(50_000))
    assert len(lender.segments) == 1


HEAP = """\
import os, pickle, resource, sys
from multiprocessing.reduction import ForkingPickler
from streamdata.delivery import collate

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

samples = [{"jpg": os.urandom(29_000)} for _ in range(64)]
for _ in range(20):
    before = faults()
    batch = pickle.loads(ForkingPickler.dumps(collate.pack(samples)))
    assert batch == samples
print(faults() - before)
"""


def test_bytes_of_one_batch_are_copied_into_the_memory_of_the_last(python: Callable) -> None:
    """Not into pages that the kernel took back and must allocate again: 29 KB values would cost 460 of them."""
    patch = "import multiprocessing; multiprocessing.active_children = lambda: [multiprocessing.current_process()]\n"
    assert int(python("-c", patch + HEAP).stdout) < 100


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_lend_few_segments_to_a_trainer_that_keeps_nothing(num_workers: int) -> None:
    """About as many as batches are on their way, however long it goes on."""
    inherited = own_segments()[1]  # what other tests left open here, workers that are forked have too
    for number, batch in enumerate(load(60, num_workers)):
        assert is_whole(batch, number)
    assert max(batch[0]["open"]) <= inherited + 6


def test_a_trainer_may_keep_all_batches() -> None:
    """Each then has memory of its own; the worker has a limited number of segments and files."""
    before = mapped(), own_segments()[1]
    kept = list(load(80))
    assert all(is_whole(batch, number) for number, batch in enumerate(kept))
    assert max(max(batch[0]["open"]) for batch in kept) <= before[1] + segments.MAX_SEGMENTS + 4
    assert own_segments()[1] == before[1]
    kept.clear()
    assert mapped() == before[0]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"pin_memory": True}], ids=str)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_nothing_is_left_of_finished_loaders(options: dict[str, Any]) -> None:
    """No maps and no files, of loaders that ended, were abandoned, or ran several epochs."""
    before = mapped(), len(os.listdir("/proc/self/fd")), len(segments._maps)
    for _ in range(4):
        loader = load(8, **options)
        assert [is_whole(batch, number) for number, batch in enumerate(loader)] == [True] * 8
        next(iter(loader))
        del loader
    assert (mapped(), len(segments._maps)) == (before[0], before[2])
    deadline = time.monotonic() + 60  # on a busy machine the pipe of a worker that ended is closed a moment later
    while len(os.listdir("/proc/self/fd")) > before[1] + 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(os.listdir("/proc/self/fd")) <= before[1] + 1  # the resource tracker's, started with the first


def test_an_abandoned_epoch_of_persistent_workers_leaves_segments_to_the_next() -> None:
    """What was on its way is received and dropped, and its segments come back."""
    loader = load(30, persistent_workers=True, prefetch_factor=4)
    for _ in range(6):
        for number, batch in enumerate(loader):
            assert is_whole(batch, number)
            if number == 3:
                break
    assert max(batch[0]["open"]) <= 10


def test_loaders_at_once_do_not_disturb_each_other() -> None:
    """Their segments are told apart by worker."""
    loaders = [load(20), load(20, 2), load(20, multiprocessing_context="forkserver")]
    for number, batches in enumerate(zip(*loaders, strict=True)):
        assert all(is_whole(batch, number) for batch in batches)


@pytest.mark.parametrize("strategy", sorted(torch.multiprocessing.get_all_sharing_strategies()))
def test_torchs_sharing_strategies_make_no_difference(strategy: str) -> None:
    """Segments come and go alike under each of them."""
    usual = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        assert all(is_whole(batch, number) for number, batch in enumerate(load(20)))
    finally:
        torch.multiprocessing.set_sharing_strategy(usual)


def count_whole(length: int, answer: Any) -> None:
    """A trainer in a process of its own."""
    answer.send(sum(is_whole(batch, number) for number, batch in enumerate(load(length))))


def test_trainers_may_be_started_by_trainers() -> None:
    """A process that was forked while its parent receives batches receives its own."""
    outer = iter(load(12))
    kept = next(outer)
    here, there = multiprocessing.Pipe()
    inner = multiprocessing.Process(target=count_whole, args=(12, there))
    inner.start()
    assert [is_whole(batch, number) for number, batch in enumerate(outer, 1)] == [True] * 11
    assert here.recv() == 12
    inner.join()
    assert is_whole(kept, 0)


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_what_arrived_may_be_sent_on(start_method: str) -> None:
    """Another process gets values of its own, which last when the segment is lent again."""
    context = torch.multiprocessing.get_context(start_method)
    forth, back = context.SimpleQueue(), context.SimpleQueue()
    reader = context.Process(target=sum_up, args=(forth, back))
    reader.start()
    for batch in load(6):
        # The array first: sending a tensor moves it to other memory, and torch leaves arrays of it behind.
        forth.put([{"array": batch[0]["x"].numpy(), "x": batch[0]["x"]}])
    del batch
    forth.put(None)
    assert back.get() == [2 * SIZE * number for number in range(6)]
    reader.join()


def sum_up(forth: Any, back: Any) -> None:
    """Reads all batches that come, at the end."""
    batches = list(iter(forth.get, None))
    back.put([int(batch[0]["x"].sum()) + int(batch[0]["array"].sum()) for batch in batches])


def fill_some(keeps: bool, segment: segments.SharedSegment, pieces: list[memoryview]) -> None:
    """From sample 9 on, the next segment of that kind is too much for its worker: a new one, or one lent before."""
    if segment.is_new == keeps and int(max(pieces, key=lambda piece: piece.nbytes).cast("B")[0]) >= 9:
        segment.memory[0] = 1
        segment.memory[64:80_000] = 255
        os.kill(os.getpid(), signal.SIGKILL)
    fill_whole(segment, pieces)


fill_whole = segments.SharedSegment.fill


def survive(keeps: bool, answer: Any) -> None:
    """A trainer whose worker is killed; torch's handler would raise that again in whatever test comes next."""
    segments.SharedSegment.fill = lambda *args: fill_some(keeps, *args)  # type: ignore[method-assign]
    kept, numbers = [], []
    try:
        for batch in load(20):
            numbers.append(int(batch[0]["x"][0]))
            kept = [*kept, batch] if keeps else [batch]
            assert all(is_whole(each, number) for each, number in zip(kept, numbers[-len(kept) :], strict=True))
    except RuntimeError as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        answer.send((str(error), [is_whole(each, int(each[0]["x"][0])) for each in kept], numbers))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_worker_killed_while_it_fills_a_segment_spoils_no_batch(keeps: bool) -> None:
    """The trainer gets an error, and keeps what it has."""
    here, there = multiprocessing.Pipe()
    trainer = multiprocessing.get_context("fork").Process(target=survive, args=(keeps, there))
    trainer.start()
    there.close()
    error, are_whole, numbers = here.recv()
    trainer.join()
    assert "worker" in error
    assert all(are_whole)
    assert numbers == list(range(len(numbers)))
    assert 6 <= len(numbers) <= (9 if keeps else 19)


def test_one_thread_may_read_while_another_drops() -> None:
    """Batches are let go in another order and another thread than they were received in."""
    held: queue.Queue[Any] = queue.Queue(5)
    wrong: list[int] = []

    def check() -> None:
        for number, batch in iter(held.get, None):
            if not is_whole(batch, number):
                wrong.append(number)

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    for item in enumerate(load(200, 2)):
        held.put(item)
    for _ in threads:
        held.put(None)
    for thread in threads:
        thread.join()
    assert not wrong
