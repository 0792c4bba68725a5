"""The loader that a trainer holds: plain batches, and the states after each of the last ones."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from traceback import clear_frames
from typing import Any, Final, NoReturn

from torch.utils.data import DataLoader

from streamdata.delivery.agree import Setting, agree, checked_setting
from streamdata.delivery.collate import StatedSamples, mixed_collate, stated_collate
from streamdata.delivery.even_ranks import MORE_PASSES, EvenRanks, Received, dropped, filled, padded
from streamdata.delivery.recent_states import RecentStates
from streamdata.delivery.tensor_collate import TensorCollate
from streamdata.errors import StateError, did_you_mean, listing, shown
from streamdata.fields import STATE, without_states
from streamdata.mixing.checks import checked_stall_s
from streamdata.mixing.live_weights import live_after
from streamdata.mixing.merged import top_of
from streamdata.mixing.tree import tree_of
from streamdata.run.lane_link import Traffic
from streamdata.states.cursor import States, is_asked, states_of_batch
from streamdata.states.joining import gather_states
from streamdata.states.progress import Progress, added, totals_of_nodes
from streamdata.states.table import LoadedStates, table_of

logger = logging.getLogger("streamdata")

_OPTIONS: Final = (
    "generator",
    "multiprocessing_context",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)
"""Options of the stock DataLoader that it takes; the others would change which samples are delivered, or in what
sequence."""
_OF_ORDER: Final = ("batch_sampler", "drop_last", "in_order", "sampler", "shuffle")
_UNEVEN: Final = ("error", "drop", "pad")


class StreamLoader:
    """Delivers batches of a mixture, and the state after each. Wraps a torch DataLoader; it is not a subclass.

    Batches come without their states, which the loader keeps: a trainer's own count of batches says what it trained on,
    whatever it or its wrappers pull ahead, and `state_after(count)` is the checkpoint.

    The stream goes on from iteration to iteration. One that is left by `break` goes on after the last batch that the
    loop received; so does one that an error ended. Each begins where the one before stands, so there is one at a
    time. After the end of a finite stream the next pass begins.

    Args:
        dataset: The stream: a MergedDataset, or a source alone, which is read as the mixture of it.
        batch_size: Samples per batch.
        num_workers: Passed to the DataLoader, as are `options`.
        collate: Makes the batch, of which `to_state` must be able to read the states.
        steps_per_epoch: Cuts the stream into stretches of so many batches, each an iteration; what was resumed inside
            one gives its rest first. The place in it follows from the states: all batches that this rank has delivered,
            modulo this. Those from before the number of ranks or workers changed are the furthest rank's. Of a finite
            stream, the next pass follows within the stretch: where some rank has no share of it, all ranks raise
            before the first batch; one whose share has no samples, which only reading it shows, raises alone.
        uneven: What becomes of ranks that have different numbers of batches of a finite stream: an `error` before the
            first; `drop` what the rank with the fewest does not have, with a line in the log; or `pad` all batches to
            the same size, and all ranks to as many batches, by repeating the rank's last records. Batches have then a
            field `__padding__`, bool (B,). The sources must give one sample for each record, and states must be of all
            ranks. After a resume between its last batch and that of others, a rank repeats other records of its own.
        stall_s: As of MergedDataset, in place of what the dataset says.

    Raises:
        ValueError: `dataset` is not a source, a number is out of range, or the stream does not support an option.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        num_workers: int = 0,
        collate: Callable[[list[Any]], Any] = TensorCollate(),  # noqa: B008  it keeps nothing between batches
        *,
        steps_per_epoch: int | None = None,
        uneven: str = "error",
        stall_s: float | None = None,
        **options: Any,
    ) -> None:
        _check_settings(batch_size, steps_per_epoch, uneven, options)
        self.dataset = dataset = top_of(dataset, "StreamLoader")
        if stall_s is not None:
            self.dataset.stall_s = checked_stall_s(stall_s, "StreamLoader")
        self.batch_size, self.num_workers = batch_size, num_workers
        self.steps_per_epoch, self.uneven = steps_per_epoch, uneven
        collate = stated_collate if collate is mixed_collate else collate
        collate = partial(filled, collate, batch_size) if uneven == "pad" else collate
        self._options = {"num_workers": num_workers, "collate_fn": collate, **options}
        self._even = EvenRanks(dataset, batch_size, num_workers, "steps" if steps_per_epoch else uneven)
        self._is_endless = tree_of(dataset).is_endless
        self._stream: Iterator[Received] | None = None
        self._dataloader: DataLoader[Any] | None = None
        self._take_states()

    def _take_states(self) -> None:
        """Begin from what the dataset was set to."""
        self._close()
        self._progress: Progress = self.dataset.progress
        self._states = RecentStates(self._progress.table)
        self.wait_s = 0.0
        """Since the resume: how long the loop waited for batches, in seconds."""
        self._reader: object = None
        """The last iteration: an older one must not take batches from it."""
        self._must_go_back = False
        self._batches_before: int | None = None
        """Batches of this rank before the resume; found when they are needed, since ranks may not be known yet."""
        self._pass: int | None = None
        """The pass of a finite stream that is read, or is to be read next; None until it is looked up."""
        self._first_of_pass = 0
        """How many batches were received before those of this pass."""
        self._even.rest = None
        self._filler: Counter[str] | None = None
        """Samples, by source, of the batch that is repeated where this rank has none left."""
        self._is_resumed = bool(self._progress)
        self._first_epoch: int | None = None
        self._epoch: int | None = None
        """Numbers that `set_epoch` was given: the first since the resume, and the last since an iteration began."""
        self._first_pass: int | None = None
        """The pass that the former stands for."""

    def __len__(self) -> int:
        """How many batches a whole stretch has.

        Raises:
            TypeError: `steps_per_epoch` is None: a stream has no length.
        """
        if self.steps_per_epoch is None:
            raise TypeError(
                "StreamLoader: a stream has no length\n"
                "  Give steps_per_epoch, which cuts it into stretches of so many batches."
            )
        return self.steps_per_epoch

    @property
    def num_batches(self) -> int:
        """The number of batches received since the resume."""
        return self._states.num_batches

    @property
    def recent_states(self) -> RecentStates:
        """The states after each of its last batches; another object after a pass was begun that had been left."""
        return self._states

    @property
    def traffic(self) -> Traffic:
        """Requests to remote stores for this loader's batches, also before the resume; see `MergedDataset.traffic`."""
        return self.dataset.traffic()

    def times(self) -> dict[str, float]:
        """Reading times (see `MergedDataset.times`), and `waiting_s`: seconds waited for batches since the resume."""
        return {"waiting_s": self.wait_s, **self.dataset.times()}

    @property
    def batches_left(self) -> int:
        """The number of batches left in the present stretch of `steps_per_epoch`; at its end, the whole next one.

        Raises:
            TypeError: The stream is not cut into stretches.
        """
        length = len(self)
        if self._batches_before is None:
            self._batches_before = self._progress.batches_of_rank(self.dataset.lane(self.num_workers))
        return length - (self._batches_before + self.num_batches) % length

    def state_after(self, n: int) -> States:
        """The states after the n-th batch since the resume, for `load_state_dict` and `set_dataloader_states`.

        Args:
            n: A number of batches, not of optimizer steps; 0 gives the states that were resumed from.

        Returns:
            Plain JSON. It includes the states that were resumed from, so it has the other ranks' entries as loaded.

        Raises:
            StateError: Fewer than `n` batches were received, or more than 256 since the n-th.
        """
        is_asked.set()
        states = self.peek(n)
        # What many weights have left is long: not of it all is needed.
        return table_of(states).present().as_dict() if self.dataset.live else dict(states)

    def peek(self, n: int) -> LoadedStates:
        """The states after the n-th batch for who only looks on, from any thread: nobody has asked for them by that."""
        return self._states.after(n)

    def state_dict(self) -> States:
        """The states after the last batch that the loop received."""
        return self.state_after(self.num_batches)

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Continue where a trainer stood: given this rank's states or, after a change of topology, those of all ranks.

        Raises:
            StateError: See `MergedDataset.set_dataloader_states`.
        """
        self.dataset.set_dataloader_states(states)
        self.dataset.set_epoch(None)
        self._take_states()

    def go_back(self, n: int) -> None:
        """Deliver again the batches after the n-th since the resume: they were received, and not trained on.

        Raises:
            StateError: See `state_after`.
        """
        self._states.after(n)
        count = self.num_batches - n
        if not count:
            return
        self._close()
        self._states.forget_last(count)
        self._reader, self._must_go_back = None, True
        if n < self._first_of_pass:
            self._even.rest = self._filler = self._pass = None
            self._set_present_states()
            self.dataset.set_epoch(None)
        elif self._even.rest is not None:
            self._even.rest.go_back(count)

    def set_weights(self, weights: Mapping[str, float] | None = None, *, timeout_s: float = 60.0) -> None:
        """Give sources other percents from the next batch on, also within a running iteration; the others keep theirs.

        What workers hold ahead is dropped, and they are started anew. Where a mixture with a `customized_yield_fn` had
        begun a burst, at most that comes again; all else goes on exactly. The percents are in the states from now on
        and win over the recipe's at a resume, unless the recipe's own has changed since. That of a source with a
        schedule stands until the schedule's next point. A trainer that pulls batches ahead gets those first.

        On several ranks all call it after the same batch. With torch.distributed rank 0's weights count, and others
        may pass None; without, every rank passes the same.

        Args:
            weights: Percents by the path of a source, or of a mixture within the top; 0 stops it.
            timeout_s: How long to wait for the other ranks, in seconds.

        Raises:
            ValueError: No such source, a percent that is negative or not finite, all of a mixture at 0, some of one
                whose percents follow from sizes, or what is below a `customized_yield_fn` within another mixture; or
                there are several ranks and no process group, in a finite stream or of a source with a schedule.
            RuntimeError: Some rank has received another number of batches, sets others, or does not call in time.
            StateError: In a finite stream of several ranks, see `gather_states`.

        Nothing is changed where it raises.
        """
        dataset, lane, count = self.dataset, self.dataset.lane(self.num_workers), self.num_batches
        own: Setting | Exception
        try:
            own = checked_setting(dataset, self.num_workers, count, self.peek(count), weights)
        except Exception as error:  # such as of a source that cannot be read: the others must hear of it
            own = error
        agreed = agree(own, timeout_s)
        assert agreed.weights is not None, "somebody gave them"
        if not self._is_endless and lane.dp_size > 1:
            # How many batches each rank gets depends on what the others have left.
            gathered = gather_states(self.peek(count), rank=lane.dp_rank, size=lane.dp_size)
            assert gathered is not None, "all ranks get them"
            self._states.amend(table_of(gathered).as_dict())
        self._close()
        self._even.rest = self._filler = None
        self._set_present_states()
        dataset.live = live_after(dataset, agreed.weights, agreed.time)
        self._states.amend(dataset.headers(self.num_workers))
        self._states.forget_old()
        self._must_go_back = True
        if self._is_pass_over():  # it stays so, as at a resume, whatever of sources that come back was left in it
            self._stream = iter(())
        logger.info("StreamLoader: after batch %d the weights %s were set", count, dict(agreed.weights))

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass of the next iteration.

        The first call after a load names the pass in which the states go on, whatever the number: a trainer may count
        from 0 in each process. Later calls count from it; without a load the number is the pass. What is left of the
        present pass is passed over if another one is named. On an endless stream, or with `steps_per_epoch`, it only
        names the next stretch: nothing depends on it.

        Raises:
            ValueError: `epoch` is negative or not an int.
        """
        if type(epoch) is not int or not 0 <= epoch < 2**53:
            raise ValueError(f"set_epoch: expected an int >= 0 and below 2**53, got {shown(epoch)}")
        if self._first_epoch is None:
            self._first_epoch = epoch
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rest of the stretch or pass; over the next one where nothing is left of it.

        Raises:
            StateError: The collate function does not keep the states.
            RuntimeError: Another iteration began, or states were loaded, since this one began.
        """
        self._reader = reader = object()
        return self._iterate(reader)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "StreamLoader: it reads a stream in this process, and cannot be copied or pickled\n"
            "  Make one in each process that trains; state_dict() is what crosses."
        )

    def _iterate(self, reader: object) -> Iterator[Any]:
        check_reader("StreamLoader", reader, self._reader)
        if self.dataset.progress is not self._progress:  # states were set on the dataset itself
            self._take_states()
            self._reader = reader
        if self.steps_per_epoch is None and not self._is_endless:
            self._go_to_named_pass()
        left, more, begun = math.inf if self.steps_per_epoch is None else self.batches_left, 1, self._pass
        while left > 0:
            check_reader("StreamLoader", reader, self._reader)
            found = self._receive(MORE_PASSES if self.steps_per_epoch else more)
            if found is None:
                return
            if more and begun is not None and self._pass is not None and self._first_pass is not None:
                self._first_pass += self._pass - begun  # nothing was left of the one that was named
            left, more = left - 1, 0
            yield found.batch

    def _go_to_named_pass(self) -> None:
        """Let the next batches be those of the pass that was named, if one was."""
        present = self._find_pass()
        wanted = self.dataset.next_pass(self.num_workers)  # another one if it was named on the dataset itself
        if self._epoch is not None and self._first_epoch is not None:
            if self._first_pass is None:
                self._first_pass = present if self._is_resumed else self._first_epoch
            wanted, self._epoch = max(0, self._first_pass + self._epoch - self._first_epoch), None
        if wanted == present:
            return
        self._close()
        self._even.rest = self._filler = None
        self._pass, self._first_of_pass = wanted, self.num_batches
        if wanted < present:  # it comes again, from its start: what was delivered of it does not count any more
            live = self.dataset.live
            self.dataset.set_dataloader_states({})
            self._progress, self._must_go_back, self.dataset.live = self.dataset.progress, False, live
            self._states = RecentStates(self._progress.table, self.num_batches)
            if live:
                self._states.amend(self.dataset.headers(self.num_workers))
        self.dataset.set_epoch(wanted)

    def _find_pass(self) -> int:
        """The pass of a finite stream that is read, or is to be read next."""
        if self._pass is None:
            self._pass = self._even.next_pass(self._progress)
            self.dataset.set_epoch(self._pass)
        return self._pass

    def _is_pass_over(self) -> bool:
        """Whether this rank has delivered the last batch of the pass that is read."""
        if self._pass is None:
            return False
        self.dataset.set_epoch(None)
        following = self._even.next_pass(self._progress)
        self.dataset.set_epoch(self._pass)
        return following > self._pass

    def _receive(self, more: int) -> Received | None:
        """The next batch; None where this pass, and as many more, give nothing."""
        began = time.perf_counter()
        try:
            found = self._next()
            while found is None and more:
                assert self._pass is not None, "an endless stream does not end"
                more -= not self.steps_per_epoch or self._even.has_share(self._pass, self._progress)
                found = self._next()
        except BaseException as error:
            # What the workers had ready is lost, and one that failed gives nothing more: it is read again.
            if self.num_workers and isinstance(error, Exception):
                self.dataset.note_dead_workers(error)
            self._close()
            self._must_go_back = True
            if self.num_workers:
                # In torch's frames the error holds itself: until a collection, which waits 5 s for each, workers would
                # live on.
                clear_frames(error.__traceback__)
            raise
        finally:
            self.wait_s += time.perf_counter() - began
        if found is None and self.steps_per_epoch:
            raise ValueError(
                f"StreamLoader: {MORE_PASSES} whole passes gave this rank nothing: its share of the sources has no "
                "samples\n  Give the sources more records, or the run fewer ranks."
            )
        return found

    def _next(self) -> Received | None:
        """The next batch of the pass, or None, once, at its end."""
        for found in self._open() if self._stream is None else self._stream:
            if found.batch is not None:
                self._states.add(found.states)
            if found.left_out:
                before = Progress(self._states.after(self.num_batches))
                for states in found.left_out:
                    self._states.amend(states)
                after = Progress(self._states.after(self.num_batches))
                samples, tokens = (_grown(before, after, name) for name in ("samples", "tokens"))
                self._note_uneven(-len(found.left_out), left_out=samples, left_out_tokens=tokens)
            if found.is_filler:
                if self._filler is None:  # it repeats the last batch of this rank
                    before, after = (Progress(self._states.after(self.num_batches - n)) for n in (2, 1))
                    self._filler = _samples_between(before, after)
                self._note_uneven(1, padded=self._filler)
            if found.batch is None:
                continue
            if self._even.rest is not None:
                self._even.rest.count(found.states)
            return found
        assert self._pass is not None, "an endless stream does not end"
        self._stream = self._even.rest = self._filler = None
        self._pass += 1
        self._first_of_pass = self.num_batches
        self.dataset.set_epoch(self._pass)
        return None

    def _note_uneven(self, batches: int, **nodes: Mapping[str, int]) -> None:
        """Add counts of this rank, those of `Progress.uneven`, to the states after the last batch."""
        of_nodes = {f"{name}/{path}": count for name, held in nodes.items() for path, count in held.items()}
        counts = {"batches": batches, **of_nodes}
        headers = self.dataset.headers(self.num_workers)
        generation = max(int(key.partition("/")[2]) for key in headers if key.startswith("generation/"))
        key = f"uneven/{generation}/{self._pass}/{self.dataset.lane(self.num_workers).dp_rank}"
        self._states.amend({**headers, key: added(self._states.after(self.num_batches).get(key, {}), counts)})

    def _open(self) -> Iterator[Received]:
        """Begin to read a pass, or the endless stream."""
        if self._must_go_back:
            self._set_present_states()
        self._even.begin(None if self._is_endless else self._find_pass(), self._progress)
        rest, repeated = self._even.rest, None
        if rest is not None and self.uneven == "pad" and rest.num_batches and not rest.own_batches:
            # It resumes after its last batch, and others have more: any other one of its own is repeated.
            self.dataset.set_dataloader_states({})
            loader = DataLoader(self.dataset, self.batch_size, collate_fn=self._options["collate_fn"])
            batch = next(iter(loader))
            repeated = without_states(batch)
            self._filler = _samples_between(Progress({}), Progress(states_of_batch(batch)))
            self._set_present_states()
            self._dataloader = None
        if self._dataloader is None:
            self._dataloader = DataLoader(self.dataset, self.batch_size, **self._options)
        # No method of its own in what it holds: by a cycle its workers would live on until a collection.
        if self.num_workers and not self._options.get("persistent_workers"):
            self.dataset.forget_workers()
        stream: Iterator[Received] = map(_received, self._dataloader)
        if rest is not None and self.uneven != "error":
            stream = dropped(stream, rest) if self.uneven == "drop" else padded(stream, rest, repeated)
        self._stream = stream
        return stream

    def _set_present_states(self) -> None:
        """Let the dataset go on after the last batch that was received."""
        self.dataset.set_dataloader_states(self._states.after(self.num_batches))
        self._progress, self._must_go_back = self.dataset.progress, False

    def _close(self) -> None:
        """Let go of the workers, and of what they have ready."""
        # Workers that live on would not have states that are set from now on.
        self._stream = self._dataloader = None


def check_reader(who: str, reader: object, last: object) -> None:
    """Raise RuntimeError unless `reader` is the iteration that began last."""
    if reader is not last:
        raise RuntimeError(
            f"{who}: another iteration began, or states were loaded, since this one began\n"
            "  A stream has one reader: begin a new iteration, which goes on where it stands."
        )


def _samples_between(before: Progress, after: Progress) -> Counter[str]:
    """The samples of a batch by source, those that fill it up among them: of states before it and after it."""
    return Counter(_grown(before, after, "samples")) + Counter(_grown(before, after, "padded"))


def _grown(before: Progress, after: Progress, name: str) -> dict[str, int]:
    """How much a total of each node has grown."""
    counts, since = totals_of_nodes(before), totals_of_nodes(after)
    grown = {path: int(held.get(name, 0) - counts.get(path, {}).get(name, 0)) for path, held in since.items()}
    return {path: number for path, number in grown.items() if number}


def _received(batch: Any) -> Received:
    if isinstance(batch, StatedSamples):
        return Received(batch.samples, states_of_batch({STATE: batch.state}))
    try:
        return Received(without_states(batch), states_of_batch(batch))
    except StateError as error:
        error.add_note(
            "StreamLoader: the batch that collate made does not keep its samples' states\n"
            "  Give collate=TensorCollate(…) or mixed_collate."
        )
        raise


def _check_settings(batch_size: object, steps_per_epoch: object, uneven: str, options: Mapping[str, object]) -> None:
    for name, value in {"batch_size": batch_size, "steps_per_epoch": steps_per_epoch}.items():
        is_left_out = value is None and name == "steps_per_epoch"
        if not is_left_out and (type(value) is not int or value < 1):
            raise ValueError(f"StreamLoader: expected {name} to be an int from 1 on, got {shown(value)}")
    if steps_per_epoch is not None and uneven in ("drop", "pad"):
        raise ValueError(
            f"StreamLoader: steps_per_epoch gives every rank as many batches, got uneven={shown(uneven)} beside it\n"
            "  Leave one of them out."
        )
    if uneven not in _UNEVEN:
        raise ValueError(f"StreamLoader: expected uneven to be one of {_UNEVEN}, got {shown(uneven)}")
    for name in sorted(options.keys() - set(_OPTIONS)):
        if name in _OF_ORDER:
            raise ValueError(
                f"StreamLoader: {shown(name)} would change what is delivered\n"
                "  The dataset decides which samples come, and in what sequence."
            )
        known = sorted({*signature(StreamLoader).parameters, *_OPTIONS} - {"options"})
        raise ValueError(
            f"StreamLoader: unknown option {shown(name)}{did_you_mean(name, known)}\n  It takes {listing(known)}."
        )
