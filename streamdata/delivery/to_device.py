"""Batches on a device before they are needed: copied by a stream of its own while the one before is worked on."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from streamdata.delivery.group_loader import GroupLoader
from streamdata.delivery.stream_loader import StreamLoader, check_reader
from streamdata.errors import StateError, shown
from streamdata.run.lane_link import Traffic
from streamdata.states.cursor import States


def to_device(
    loader: StreamLoader | GroupLoader,
    device: torch.device | str | int,
    ahead: int = 2,
    transform: Callable[[Any], Any] | None = None,
) -> "DeviceLoader":
    """Moves a loader's batches to a device, the next ones while the loop works on the present one.

    Args:
        loader: Gives the batches. With `pin_memory=True` its pinning thread pins them, else they are pinned here.
        device: Where tensors go, at any depth of dicts, lists and tuples; all else stays as it is.
        ahead: How many batches are being moved, beside the one that the loop has.
        transform: Makes of each batch what is moved, such as a `context_slice` of it. Where it raises, its batch was
            not received: the next iteration gives it again.

    Raises:
        ValueError: `ahead` is no int from 1 on.
    """
    if type(ahead) is not int or ahead < 1:
        raise ValueError(f"to_device: expected ahead to be an int from 1 on, got {shown(ahead)}")
    return DeviceLoader(loader, torch.device(device), ahead, transform)


class DeviceLoader:
    """A `StreamLoader` or `GroupLoader` whose batches arrive on a device; its states cover only what the loop received.

    An iteration that is left by `break` goes on with the next batch; so does one that an error ended.

    Args:
        loader: Gives the batches.
        device: Where tensors go.
        ahead: How many batches are on their way.
        transform: Makes of each batch what is moved; None moves it as it is.
    """

    def __init__(
        self,
        loader: StreamLoader | GroupLoader,
        device: torch.device,
        ahead: int,
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self.loader, self.device = loader, device
        self.dataset, self.num_workers = loader.dataset, loader.num_workers
        self._num_ahead, self._transform = ahead, transform
        self._begin()

    def _begin(self) -> None:
        self._source: Iterator[Any] | None = None
        """Iterator of the loader; None once it has come to its end, also while its last batches are on their way."""
        self._ahead: deque[Callable[[], Any]] = deque()
        """Another one for each iteration: an older one must not take batches from it."""

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def num_batches(self) -> int:
        """The number of batches that the loop received since the resume."""
        return self.loader.num_batches - len(self._ahead)

    @property
    def traffic(self) -> Traffic:
        """Requests to remote stores by the wrapped loader, also for batches that are still being moved."""
        return self.loader.traffic

    def state_after(self, n: int) -> States:
        """The states after the n-th batch that the loop received.

        Raises:
            StateError: As the loader's, and where the n-th is still on its way.
        """
        if isinstance(n, int) and n > self.num_batches:
            raise StateError(
                f"state_after: expected a number of batches up to {self.num_batches}, got {shown(n)}\n"
                "  Those after them are on their way to the device, and were not received."
            )
        return self.loader.state_after(n)

    def state_dict(self) -> States:
        """The states after the last batch that the loop received."""
        return self.state_after(self.num_batches)

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Continue where a trainer stood; batches that are still being moved count as not delivered."""
        self._begin()
        self.loader.load_state_dict(states)

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass of the next iteration.

        Batches on their way are given back, since they may be of a pass that is left.
        """
        if self._ahead:
            self.loader.go_back(self.num_batches)
            self._begin()
        self.loader.set_epoch(epoch)

    def set_weights(self, weights: Mapping[str, float] | None = None, *, timeout_s: float = 60.0) -> None:
        """Give sources other percents after the last batch that the loop received; see `StreamLoader.set_weights`.

        Batches on their way are given back.
        """
        if self._ahead:
            self.loader.go_back(self.num_batches)
            self._ahead.clear()
            self._source = iter(self.loader)
        self.loader.set_weights(weights, timeout_s=timeout_s)

    def __iter__(self) -> Iterator[Any]:
        """Iterate as the loader does, or over what is left of the iteration before.

        Raises:
            RuntimeError: Another iteration began, or states were loaded, since this one began.
        """
        if self._source is None and not self._ahead:
            self._source = iter(self.loader)
        self._ahead = ahead = deque(self._ahead)
        return self._iterate(ahead)

    def _iterate(self, ahead: deque[Callable[[], Any]]) -> Iterator[Any]:
        copy = _copier(self.device)
        while True:
            check_reader("to_device", ahead, self._ahead)
            while self._source is not None and len(ahead) <= self._num_ahead:
                batch = self._next(self._source)
                if batch is not None:
                    ahead.append(copy(self._transformed(batch)))
            if not ahead:
                return
            yield ahead.popleft()()

    def _next(self, source: Iterator[Any]) -> Any:
        """The loader's next batch; None at its end, so that a loop that stops after the last one has ended it, too."""
        try:
            return next(source)
        except StopIteration:
            self._source = None
            return None
        except BaseException:
            self._source = iter(self.loader)  # a generator that raised is over, and the loader goes on
            raise

    def _transformed(self, batch: Any) -> Any:
        if self._transform is None:
            return batch
        try:
            return self._transform(batch)
        except BaseException:
            self.loader.go_back(self.loader.num_batches - 1)
            self._source = iter(self.loader)
            raise


def _copier(device: torch.device) -> Callable[[Any], Callable[[], Any]]:
    """Return a function that begins the copy of a batch; its result hands the copy over to the current stream."""
    if device.type != "cuda":
        return lambda batch: lambda: _mapped(lambda tensor: tensor.to(device), batch)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(tensor: torch.Tensor) -> torch.Tensor:
        # torch keeps pinned memory until the copy out of it is done, also where Python has dropped it.
        pinned = tensor if tensor.is_cuda or tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(device, non_blocking=True)

    def copy(batch: Any) -> Callable[[], Any]:
        with torch.cuda.stream(stream):
            copied = _mapped(begin, batch)
            done = stream.record_event()

        def hand_over() -> Any:
            current = torch.cuda.current_stream(device)
            # Neither waits on the host: the device does, and only for this copy.
            current.wait_event(done)
            # The allocator would give the memory to a later copy as soon as Python drops the tensor.
            _mapped(lambda tensor: tensor.record_stream(current), copied)
            return copied

        return hand_over

    return copy


def _mapped(function: Callable[[torch.Tensor], object], value: Any) -> Any:
    """Return the value with a function of each tensor in place of it."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: _mapped(function, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_mapped(function, each) for each in value]
    if isinstance(value, tuple):
        values = [_mapped(function, each) for each in value]
        return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
    return value
