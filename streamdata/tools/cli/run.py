"""`streamdata run`: a recipe through a stock DataLoader, and what came out of it."""

import itertools
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import DataLoader

from streamdata.delivery import mixed_collate
from streamdata.delivery.stream_loader import note_dead_workers
from streamdata.errors import RecipeError
from streamdata.mixing import MergedDataset
from streamdata.mixing.merged import instantiate_from_yaml, top_of
from streamdata.run.lane_link import Traffic
from streamdata.tools.cli.interrupt import Interrupt, TerminatedError, leave_interrupts_to_trainer
from streamdata.tools.cli.messages import say
from streamdata.tools.cli.ticker import Ticker
from streamdata.tools.view import Delivery, describe
from streamdata.tools.view.tree import percent_text

_MAX_SHARES = 6
"""Sources that the live line names; the summary names all."""


def run_recipe(
    recipe: Path,
    variables: Mapping[str, Any],
    allow: Collection[str] | None,
    *,
    batches: int | None,
    batch_size: int,
    workers: int,
    include_roots: Sequence[str] = (),
) -> bool:
    """Build a recipe, show its tree, stream it, and show what was delivered.

    Returns:
        Whether it came to its end: the stream's, or `batches`; False after Ctrl-C.

    Raises:
        RecipeError: It cannot be built.
        Exception: What the stream raised; what was delivered until then is shown.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        dataset = build_mixture(recipe, variables, allow, include_roots)
    for warning in caught:
        say(f"warning: {warning.message}", err=True)
    say(describe(dataset))
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=mixed_collate,
        worker_init_fn=leave_interrupts_to_trainer,
    )
    return _stream(dataset, loader, batches)


def build_mixture(
    recipe: Path, variables: Mapping[str, Any], allow: Collection[str] | None, include_roots: Sequence[str] = ()
) -> MergedDataset:
    """Build a recipe whose root is a mixture, or a source, which is then mixed alone.

    Raises:
        RecipeError: It cannot be built, or its root is something else.
    """
    dataset = instantiate_from_yaml(recipe, variables, allow=allow, include_roots=include_roots)
    try:
        return top_of(dataset, f"{recipe}: root")
    except ValueError as error:
        raise RecipeError(str(error)) from error


def _stream(dataset: MergedDataset, loader: DataLoader[Any], batches: int | None) -> bool:
    pace = Pace(Delivery(dataset), dataset.traffic)
    try:
        with Ticker(Console()) as ticker, Interrupt() as interrupt:
            for batch in itertools.islice(loader, batches):
                pace.add(batch)
                ticker.tick(pace.line)
                interrupt.check()
    except TerminatedError:
        raise
    except Exception as error:
        note_dead_workers(error, dataset)
        raise
    except KeyboardInterrupt:
        return False
    finally:
        say(pace.summary())
    return True


class Pace:
    """What was delivered, and how fast.

    Args:
        delivery: Accumulates it.
        traffic: Returns what was asked of stores for it.
    """

    def __init__(self, delivery: Delivery, traffic: Callable[[], Traffic] = Traffic) -> None:
        self._delivery, self._traffic = delivery, traffic
        self._start = time.monotonic()
        self._first: tuple[float, int, int] | None = None
        """When the first batch had come, its samples and bytes: workers start before it, at a pace of their own."""

    def add(self, batch: list[dict[str, Any]]) -> None:
        """Count a batch."""
        self._delivery.add(batch)
        if self._first is None:
            self._first = (time.monotonic(), self._delivery.samples, self._delivery.size_bytes)

    def line(self) -> str:
        """How far it is, how fast, and the shares so far, in one line."""
        sources = sorted(self._delivery.sources(), key=lambda source: -source.wanted)
        shares = [f"{source.path} {percent_text(source.achieved)}" for source in sources[:_MAX_SHARES]]
        if len(sources) > _MAX_SHARES:
            shares.append(f"{len(sources) - _MAX_SHARES} more")
        elapsed, traffic = time.monotonic() - self._start, self._traffic()
        waiting = f"{traffic.waiting:.0%} waiting for stores  " if traffic.is_any else ""
        return f"{elapsed:.1f} s  {self._delivery.samples:,} samples  {self._rates()}  {waiting}{', '.join(shares)}"

    def summary(self) -> str:
        """All that was delivered, with wanted and achieved shares."""
        if self._first is None:
            return "no batch was delivered"
        elapsed, late = time.monotonic() - self._start, self._first[0] - self._start
        total = f"{self._delivery.samples:,} samples, {_megabytes(self._delivery.size_bytes)} in {elapsed:.1f} s"
        later = f", then {self._rates()}" if self._delivery.samples > self._first[1] else ""
        lines = [f"{total}; the first batch after {late:.2f} s{later}", *_of_stores(self._traffic())]
        return "\n".join([*lines, self._delivery.summary()])

    def _rates(self) -> str:
        """Samples and megabytes a second, since the first batch."""
        if self._first is None:
            return "0 samples/s"
        since, samples, size_bytes = self._first
        duration = max(time.monotonic() - since, 1e-9)
        samples_rate = (self._delivery.samples - samples) / duration
        bytes_rate = (self._delivery.size_bytes - size_bytes) / duration
        return f"{samples_rate:,.0f} samples/s, {_megabytes(bytes_rate)}/s"


def _of_stores(traffic: Traffic) -> list[str]:
    """What was asked of stores, in a line; none where nothing was."""
    if not traffic.is_any:
        return []
    asked = f"{_megabytes(traffic.num_bytes)} by {traffic.requests:,} requests, {traffic.retries:,} of them repeated"
    cached = f"{_megabytes(traffic.cached_bytes)} of the cache by {traffic.cache_hits:,} hits"
    return [f"from stores: {asked}; {cached}; readers waited {traffic.waiting:.0%} of their time"]


def _megabytes(size_bytes: float) -> str:
    number = size_bytes / 1e6
    return f"{number:,.0f} MB" if number >= 100 else f"{number:.3g} MB"  # noqa: PLR2004
