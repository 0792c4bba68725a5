"""One reader for a group of processes that train on the same batches, as under tensor or context parallelism.

The group's first process reads, in a thread, and sends each batch with its states; a thread of each other one receives
them. Loops take from what these threads have ready: one batch. What comes of an iteration that was left is dropped by
its number: nobody waits for the others where states are loaded or a pass is named.
"""

import io
import math
import os
import pickle
import threading
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from traceback import format_exception_only
from typing import Any, Final, NamedTuple, NoReturn

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh

from streamdata.delivery.recent_states import RecentStates
from streamdata.delivery.stream_loader import StreamLoader, check_reader
from streamdata.errors import StateError, shown
from streamdata.mixing.tree import tree_of
from streamdata.run import DataParallel
from streamdata.run.lane_link import Traffic
from streamdata.run.topology import members_of
from streamdata.states.cursor import States, is_asked
from streamdata.states.headers import canonical, digest_of
from streamdata.states.progress import Progress
from streamdata.states.saving import MemberStates, remember, store_of_group

_BEAT_S: Final = 2.0
"""How often each process says that it lives, in seconds."""
_PATIENCE: Final = timedelta(seconds=7)
"""How long to wait for that: with what came before, a process that is gone is noticed within 10 s."""
_FOREVER: Final = timedelta(days=365)
"""Limit of a message, since the others may be in a long step; who dies meanwhile is noticed by the heartbeat."""
_MESSAGE, _BEAT, _NEVER = range(3)
"""Tags, which keep messages and heartbeats apart; nobody sends the last one."""
_END: Final = object()


class _Message(NamedTuple):
    """A batch, or the end of an iteration, as the reader tells it to all loops."""

    iteration: int
    """How many iterations had been left before it."""
    late: Mapping[str, Any] = {}
    """States that came since the batch before, and belong to it."""
    is_anew: bool = False
    """Whether earlier states do not count any more: a pass was begun that the stream had left."""
    states: Mapping[str, Any] | None = None
    """States of the batch; None at the end of the iteration."""
    batch: Any = None
    error: str | None = None
    """The error that ended the iteration, if one did."""


class GroupLoader:
    """Delivers the batches of a `StreamLoader` to all processes of a group, of which the first alone reads.

    Every process of the group builds the loader, over the same recipe and with the same data-parallel rank, loads the
    same states and runs the same loop: it calls each method when the others do. Each has the states of all batches, so
    `state_dict` and `state_after` need no communication; `save_states` writes those of the first process alone.

    An error of the reader, or the death of any process, is raised in the others within 10 s, where they wait for a
    batch. An iteration that is left by `break` goes on with the next batch.

    Args:
        loader: Its dataset has the data-parallel rank, by `set_data_parallel`.
        group: The processes that train on the same batches: their process group, such as Megatron's
            `get_tensor_and_context_parallel_group()`. Or a DeviceMesh, along whose dimensions `dp_replicate`,
            `dp_shard`, `dp` and `batch` processes read other samples, and along `tp`, `cp` and `pp` the same.

    Raises:
        ValueError: `loader` or `group` is not one, it is not clear which processes of the mesh read the same, or they
            differ in their recipe, data-parallel rank or settings; the last on all of them.
    """

    def __init__(self, loader: StreamLoader, group: "distributed.ProcessGroup | DeviceMesh") -> None:
        if not isinstance(loader, StreamLoader):
            raise ValueError(
                f"GroupLoader: expected a StreamLoader, got {shown(loader)}\n"
                "  To move batches to a device, call to_device(GroupLoader(loader, group), device)."
            )
        ranks = _ranks_of(group)
        wire = _Wire(ranks) if len(ranks) > 1 else None
        self.loader, self.dataset, self.num_workers = loader, loader.dataset, loader.num_workers
        self.is_reader: bool = ranks[0] == distributed.get_rank()
        """Whether this process reads."""
        lane = loader.dataset.lane(loader.num_workers)
        self._replica = DataParallel(dp_size=lane.dp_size, dp_rank=lane.dp_rank)
        self._feed = _Feed(wire)
        weakref.finalize(self, self._feed.close)
        if wire is not None:
            _check_alike(loader, self._replica, wire)
            self._feed.start(self._feed.watch)
            if not self.is_reader:
                self._feed.start(self._feed.receive)
        self._begin(loader.dataset.progress)

    def _begin(self, progress: Progress) -> None:
        self._states = RecentStates(progress.table)
        self._is_open = False
        """Whether an iteration has begun, of which something may be left."""
        self._loop: object = None
        """The loop's last iteration: an older one must not take batches from it."""

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def num_batches(self) -> int:
        """The number of batches that the loop received since the resume."""
        return self._states.num_batches

    @property
    def traffic(self) -> Traffic:
        """Requests of this process to remote stores: none where it does not read."""
        return self.loader.traffic

    def state_after(self, n: int) -> States:
        """The states after the n-th batch that the loop received, the same in all processes of the group.

        Raises:
            StateError: As the loader's.
        """
        is_asked.set()
        return MemberStates(self._states.after(n), self._replica, is_first=self.is_reader)

    def state_dict(self) -> States:
        """The states after the last batch that the loop received."""
        return self.state_after(self.num_batches)

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Continue where a trainer stood. No process but the reader opens a file for it.

        Raises:
            StateError: As the loader's; that states do not fit the data is raised on the reader alone.
        """
        self._leave()
        if self.is_reader:
            with self._feed.reading:
                self.loader.load_state_dict(states)
            self._begin(self.dataset.progress)
        else:
            progress = Progress(states)
            remember(progress.table)
            self._begin(progress)

    def go_back(self, n: int) -> None:
        """Deliver again the batches after the n-th since the resume: they were received, and not trained on.

        Raises:
            StateError: See `state_after`.
        """
        self._states.after(n)
        if self._is_open or n < self.num_batches:
            if self._is_open:
                self._feed.settle()
            self._leave()
            self._states.forget_last(self.num_batches - n)
            if self.is_reader:
                with self._feed.reading:
                    self.loader.go_back(n)

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass of the next iteration, as the loader's; what is on its way of the present one is given back.

        Raises:
            ValueError: `epoch` is negative or not an int.
        """
        self.go_back(self.num_batches)
        self.loader.set_epoch(epoch)

    def set_weights(self, weights: Mapping[str, float] | None = None, *, timeout_s: float = 60.0) -> NoReturn:
        """Always raises: weights cannot be set where one process reads for others.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "GroupLoader: weights cannot be set where one process reads for others\n"
            "  Save, change the percents in the recipe, and resume."
        )

    def __iter__(self) -> Iterator[Any]:
        """Iterate as the loader does, or over what is left of the iteration before.

        Raises:
            RuntimeError: The reader has failed, by the error that the message shows (the reader itself raises that); a
                process of the group is gone; or another iteration began, or states were loaded, since this one began.
            StateError: The reader has loaded states, or named a pass, and this process has not.
        """
        self._loop = loop = object()
        return self._iterate(loop)

    def _iterate(self, loop: object) -> Iterator[Any]:
        check_reader("GroupLoader", loop, self._loop)
        is_rest = self._is_open
        if not is_rest:
            self._open()
        while True:
            message = self._feed.take()
            if message.is_anew:
                self._states = RecentStates(Progress({}).table, self.num_batches)
            if message.late:
                self._states.amend(message.late)
            if message.states is not None:
                self._states.add(message.states)
                is_rest = False
                yield message.batch
                check_reader("GroupLoader", loop, self._loop)
                continue
            self._is_open = False
            if message.error is not None:
                raise self._feed.error or RuntimeError(f"GroupLoader: the group's reader has failed: {message.error}")
            if not is_rest:
                return
            is_rest = False  # its end was all that was left
            self._open()

    def _open(self) -> None:
        """Begin the next iteration of the loader."""
        self._is_open = True
        if self.is_reader:
            self._feed.begin(self.loader)

    def _leave(self) -> None:
        """Leave the present iteration: what is on its way of it does not come any more."""
        self._feed.leave()
        self._is_open, self._loop = False, None


class _Feed:
    """The batches that are ready for a loop, and the threads that get them; they do not keep the GroupLoader alive.

    Args:
        wire: To the other processes; None if there are none.
    """

    def __init__(self, wire: "_Wire | None") -> None:
        self._wire, self._pid = wire, os.getpid()
        self._changed = threading.Condition()
        """Guards what is ready, the number, and why nothing comes."""
        self._ready: deque[_Message] = deque()
        self._iteration = 0
        """How many iterations were left: what comes of these is dropped."""
        self._over: str | None = None
        """Why nothing can come any more."""
        self._threads: list[threading.Thread] = []
        self._reader: threading.Thread | None = None
        self.reading = threading.Lock()
        """Held while the reader's thread uses the loader."""
        self.error: Exception | None = None
        """The error that ended the last iteration, on the reader."""

    def start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        """Run a function in a thread."""
        thread = threading.Thread(target=work, args=arguments, name="streamdata group", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()
        return thread

    def begin(self, loader: StreamLoader) -> None:
        """Begin the next iteration of the reader's loader."""
        self.error = None
        self._reader = self.start(self.read, loader, self._iteration, self._reader)

    def leave(self) -> None:
        """Drop what is ready of the present iteration, and what comes of it."""
        with self._changed:
            self._iteration += 1
            while self._ready and self._ready[0].iteration < self._iteration:
                self._ready.popleft()
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait for the next message: whether an iteration has come to its end must not depend on time."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._over)

    def take(self) -> _Message:
        """Wait for the next message of the present iteration.

        Raises:
            RuntimeError: None can come any more.
            StateError: The reader is in a later iteration.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._over)
            if not self._ready:
                raise RuntimeError(
                    f"GroupLoader: {self._over}\n  Its own log says why; start the job again from its last checkpoint."
                )
            if self._ready[0].iteration > self._iteration:
                raise StateError(
                    "GroupLoader: the group's reader has begun another iteration than this process\n"
                    "  Call load_state_dict, set_epoch and iter on all processes of the group alike."
                )
            self._changed.notify_all()
            return self._ready.popleft()

    def _put(self, message: _Message) -> None:
        with self._changed:
            if message.iteration >= self._iteration:
                self._ready.append(message)
                self._changed.notify_all()

    def _has_room(self, iteration: float = math.inf) -> bool:
        """Wait until the loop has taken what is ready; False where no more is wanted, or not of this iteration."""
        with self._changed:
            self._changed.wait_for(lambda: not self._ready or self._over or iteration < self._iteration)
            return not self._over and iteration >= self._iteration

    def read(self, loader: StreamLoader, iteration: int, before: threading.Thread | None) -> None:
        """Read an iteration, and send it to the others: the reader's thread, once that of the one before has ended."""
        if before is not None:
            before.join()
        batches: Iterator[Any] | None = None
        message = _Message(iteration, states={})
        while message.states is not None and self._has_room(iteration):
            try:
                with self.reading:
                    if iteration < self._iteration:
                        return
                    batches = batches or iter(loader)
                    message, parts = _next_message(loader, batches, message)
            except Exception as error:  # whatever it is, all of the group must hear of it
                self.error = error
                message = _Message(iteration, error="".join(format_exception_only(error)).rstrip())
                parts = _packed(message)
            if self._wire is not None:
                try:
                    self._wire.send(parts)
                except RuntimeError:  # somebody is gone: `watch` says who
                    return
            self._put(message)

    def receive(self) -> None:
        """Get what the reader sends: a thread of each other process."""
        assert self._wire is not None, "there is a reader"
        with suppress(RuntimeError):  # as above
            while self._has_room():
                self._put(self._wire.receive())

    def watch(self) -> None:
        """Exchange heartbeats until a process of the group is gone: a thread of each."""
        assert self._wire is not None, "there are others"
        try:
            while not self._over:
                self._wire.beat()
                with self._changed:
                    self._changed.wait_for(lambda: self._over, _BEAT_S)
        except RuntimeError as error:
            self._end(str(error))

    def _end(self, why: str) -> None:
        with self._changed:
            self._over = self._over or why
            self._changed.notify_all()
        if self._wire is not None:
            self._wire.close()

    def close(self) -> None:
        """End the threads, one of which would abort the interpreter if it were within gloo at the process's end."""
        if os.getpid() == self._pid:  # a worker that was forked has none of them
            self._end("it was dropped")
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(_BEAT_S)


class _Wire:
    """Connects the processes of a group; made by all of them at once.

    Args:
        ranks: The processes, as ranks of the default group, sorted; at least two.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks, self._place = list(ranks), list(ranks).index(distributed.get_rank())
        # Not by `new_group`: the name that it gives a group of some ranks counts what other groups a process is in, so
        # that one in fewer (of a pipeline's middle) would meet nobody; and its connections last as long as the process.
        store, whose = store_of_group(), f"streamdata/group/{self.ranks}"
        meeting = distributed.distributed_c10d.PrefixStore(f"{whose}/{store.add(f'{whose}/{self._place}', 1)}", store)
        # The time that torch gives processes to meet.
        self._group: Any = distributed.ProcessGroupGloo(meeting, self._place, len(ranks), timedelta(minutes=30))

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in each of them; a value has less than 4 KB."""
        own = torch.frombuffer(bytearray(pickle.dumps(value).ljust(4096)), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in self.ranks]
        self._group.allgather([found], [own]).wait()
        return [pickle.loads(one.numpy().tobytes()) for one in found]  # noqa: S301  as in `receive`

    def send(self, parts: Sequence[Tensor]) -> None:
        """Send a message to all others, on the first process; return when each of them is receiving its end.

        Args:
            parts: What `_packed` made of it.
        """
        for part in parts:
            to = range(1, len(self.ranks)) if len(part) else ()
            for work in [self._group.send([part], place, _MESSAGE) for place in to]:
                work.wait(_FOREVER)

    def receive(self) -> Any:
        """Wait for the next message of the first process, on the others."""
        head = self._received(int(self._received(1, torch.int64)), torch.uint8).numpy().tobytes()
        body, sizes = pickle.loads(head)  # noqa: S301  of a process of the same job
        flat = {dtype: self._received(size, dtype) for dtype, size in sizes.items()}

        def tensor_at(place: tuple[torch.dtype, int, torch.Size]) -> Tensor:
            dtype, end, shape = place
            return flat[dtype][end - shape.numel() : end].view(shape)

        unpickler = pickle.Unpickler(io.BytesIO(body))  # noqa: S301  as above
        unpickler.persistent_load = tensor_at  # type: ignore[method-assign]
        return unpickler.load()

    def _received(self, size: int, dtype: torch.dtype) -> Tensor:
        buffer = torch.empty(size, dtype=dtype)
        if size:
            self._group.recv([buffer], 0, _MESSAGE).wait(_FOREVER)
        return buffer

    def beat(self) -> None:
        """Exchange one heartbeat: each of the others with the first process.

        Raises:
            RuntimeError: A process is gone; the message names it.
        """
        others = range(1, len(self.ranks)) if self._place == 0 else [0]
        own, other, place = torch.zeros(1), torch.empty(1), 0
        try:
            sent = [self._group.send([own], place := to, _BEAT) for to in others]
            for place in others:
                self._group.recv([other], place, _BEAT).wait(_PATIENCE)
            for work in sent:
                work.wait(_PATIENCE)
        except RuntimeError as error:
            why = "" if place else ", or has noticed that another of the group is"
            raise RuntimeError(f"rank {self.ranks[place]} of the default group is gone{why}") from error

    def close(self) -> None:
        """End the connection: whatever waits on it in this process raises now, and in the others soon."""
        # gloo ends all connections of a group in which a wait has timed out; its `abort` wakes nobody (torch 2.13).
        with suppress(RuntimeError):
            self._group.recv([torch.empty(1)], 1 - min(self._place, 1), _NEVER).wait(timedelta(milliseconds=1))


def _next_message(loader: StreamLoader, batches: Iterator[Any], last: _Message) -> tuple[_Message, list[Tensor]]:
    """Read the next batch, with its states and those that came since the one before; and pack it."""
    before, number = loader.recent_states, loader.num_batches
    batch = next(batches, _END)
    recent = loader.recent_states
    late = recent.entries(number)
    found = _Message(last.iteration, {} if late is last.states else late, recent is not before)
    if batch is not _END:
        found = found._replace(states=recent.entries(number + 1), batch=batch)
    try:
        return found, _packed(found)
    except BaseException:
        loader.go_back(number)  # nobody received it: the next iteration gives it again
        raise


def _ranks_of(group: Any) -> list[int]:
    """The processes of a group, as ranks of the default group, sorted."""
    if isinstance(group, DeviceMesh):
        return sorted(members_of(group))
    if not isinstance(group, distributed.ProcessGroup):
        raise ValueError(
            f"GroupLoader: expected a process group or a DeviceMesh, got {shown(group)}\n"
            "  Give the group of the processes that train on the same batches, this one among them."
        )
    return sorted(distributed.get_process_group_ranks(group))


def _check_alike(loader: StreamLoader, replica: DataParallel, wire: _Wire) -> None:
    """Compare what the processes of a group are about to read; no shard is opened for it.

    Raises:
        ValueError: A process differs from another; on all of them.
    """
    nodes = [
        # What else determines a source's order is asked of its shards.
        [node.path, type(node.dataset).__qualname__, repr(getattr(node.dataset, "percent", None))]
        + ([node.order] if node.is_mixture else [])
        for node in tree_of(loader.dataset).walk()
    ]
    own = {"data-parallel rank": replica, "recipe": digest_of(canonical(nodes))}
    own |= {name: getattr(loader, name) for name in ("batch_size", "num_workers", "steps_per_epoch", "uneven")}
    for rank, other in zip(wire.ranks, wire.gather(own), strict=True):
        if differing := {name: (other[name], own[name]) for name in own if other[name] != own[name]}:
            raise ValueError(
                f"GroupLoader: rank {rank} of the default group differs from this process in {differing}\n"
                "  Build the same loader in all processes of a group, whose data-parallel rank does not count tensor, "
                "context and pipeline parallelism: see MergedDataset.set_data_parallel."
            )


def _packed(message: Any) -> list[Tensor]:
    """Pack a message: how long its header is, the header, and a buffer of all its tensors of each dtype.

    Args:
        message: What can be pickled, with tensors at any depth.
    """
    parts: defaultdict[torch.dtype, list[Tensor]] = defaultdict(list)
    ends: Counter[torch.dtype] = Counter()

    def place_of(value: Any) -> tuple[torch.dtype, int, torch.Size] | None:
        if not isinstance(value, Tensor):
            return None
        if value.device.type != "cpu":
            got = f"got one on {value.device}\n  Let to_device(GroupLoader(…), device) move batches."
            raise ValueError(f"GroupLoader: expected tensors on the CPU, {got}")
        parts[value.dtype].append(value.detach().reshape(-1))
        ends[value.dtype] += value.numel()
        return value.dtype, ends[value.dtype], value.shape

    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.persistent_id = place_of  # type: ignore[method-assign]
    pickler.dump(message)
    head = torch.frombuffer(bytearray(pickle.dumps((file.getvalue(), ends))), dtype=torch.uint8)
    return [torch.tensor([len(head)]), head, *map(torch.cat, parts.values())]
