"""Commands about a run of a recipe: `plan` says what it will do, `run` streams it, `profile` times its parts."""

import json
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn

from streamdata.tools.cli.messages import (
    INTERRUPTED,
    Interrupt,
    TerminatedError,
    Ticker,
    leave_interrupts_to_trainer,
    say,
)
from streamdata.tools.cli.options import Batch, Json, Ranks, Recipe, Workers, count, takes_recipe

if TYPE_CHECKING:
    from streamdata.mixing import MergedDataset
    from streamdata.run.lane_link import Traffic
    from streamdata.tools.view import Delivery

_MAX_SHARES: Final = 6
"""Sources that the live line names; the summary names all."""


@takes_recipe
def plan(
    recipe: Recipe,
    samples: Annotated[int | None, count("Samples that the job takes.")] = None,
    tokens: Annotated[int | None, count("Or tokens that it takes.")] = None,
    ranks: Ranks = 1,
    workers: Workers = 0,
    batch: Batch = 1,
    read: Annotated[
        int, count("Records that are read of each source, to know it; 0 reads none.", "--read", least=0, metavar="K")
    ] = 100,
    draws: Annotated[
        int | None, count("Show the first draws of rank 0, worker 0; with --json 20 of them.", least=0, metavar="K")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run will read of each source: epochs, repeats, bytes, and what to do about them."""
    if (samples is None) == (tokens is None):
        raise typer.BadParameter("expected one of --samples and --tokens", param_hint="--samples")
    from streamdata.tools.plan.make_plan import HURTS, MIND, Amount, make_plan
    from streamdata.tools.plan.plan_text import plan_json, plan_text

    amount = Amount(samples, tokens, ranks, workers, batch)
    num_draws = draws if draws is not None else 20 * as_json
    dataset = recipe.build()
    with Ticker(plain_interval_s=10.0, columns=(BarColumn(),)) as ticker:
        made = make_plan(dataset, amount, num_sampled=read, num_draws=num_draws, progressed=ticker.count)
    colours = {HURTS: typer.colors.RED, MIND: typer.colors.YELLOW} if has_colours() else {}

    def paint(text: str, level: str) -> str:
        return typer.style(text, fg=colours[level]) if level in colours else text

    typer.echo(json.dumps(plan_json(made), allow_nan=False) if as_json else plan_text(made, paint))


def has_colours() -> bool:
    """Whether what is printed may have colours: it goes to a terminal, and nobody has said NO_COLOR."""
    console = Console()
    return console.is_terminal and not console.no_color


@takes_recipe
def run(
    recipe: Recipe,
    batches: Annotated[int | None, count("Stop after N batches; by default at the end, or at Ctrl-C.")] = None,
    batch: Batch = 16,
    workers: Workers = 0,
) -> None:
    """Stream a recipe through a DataLoader; report samples/s, MB/s, and the share of each source."""
    from streamdata.tools.view.tree import fitted, tree_rows

    dataset = recipe.build()
    say(fitted(tree_rows(dataset), (0, 6)))
    raise typer.Exit(0 if _stream(dataset, batches, batch, workers) else INTERRUPTED)


def _stream(dataset: "MergedDataset", batches: int | None, batch_size: int, workers: int) -> bool:
    """Stream a mixture, and show what was delivered, also before an error.

    Returns:
        Whether it came to its end: the stream's, or `batches`; False after Ctrl-C.
    """
    from torch.utils.data import DataLoader

    from streamdata.delivery import mixed_collate
    from streamdata.tools.view import Delivery

    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=mixed_collate,
        worker_init_fn=leave_interrupts_to_trainer,
    )
    pace = Pace(Delivery(dataset), dataset.traffic)
    try:
        with Ticker(Console()) as ticker, Interrupt() as interrupt:
            for batch in islice(loader, batches):
                pace.add(batch)
                ticker.tick(pace.line)
                interrupt.check()
    except TerminatedError:
        raise
    except Exception as error:
        dataset.note_dead_workers(error)
        raise
    except KeyboardInterrupt:
        return False
    finally:
        say(pace.summary())
    return True


class Pace:
    """Counts what was delivered, and how fast.

    Args:
        delivery: Accumulates it.
        traffic: Returns what was asked of stores for it.
    """

    def __init__(self, delivery: "Delivery", traffic: Callable[[], "Traffic"]) -> None:
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
        from streamdata.tools.view.tree import percent_text

        sources = sorted(self._delivery.sources(), key=lambda source: -(source.wanted or 0))
        shares = [f"{source.name} {percent_text(source.achieved)}" for source in sources[:_MAX_SHARES]]
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
        lines, traffic = [f"{total}; the first batch after {late:.2f} s{later}"], self._traffic()
        if traffic.is_any:
            requests = f"{traffic.requests:,} requests, {traffic.retries:,} of them repeated"
            cached = f"{_megabytes(traffic.cached_bytes)} of the cache by {traffic.cache_hits:,} hits"
            waited = f"readers waited {traffic.waiting:.0%} of their time"
            lines.append(f"from stores: {_megabytes(traffic.num_bytes)} by {requests}; {cached}; {waited}")
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


def _megabytes(size_bytes: float) -> str:
    number = size_bytes / 1e6
    return f"{number:,.0f} MB" if number >= 100 else f"{number:.3g} MB"  # noqa: PLR2004


@takes_recipe
def profile(
    recipe: Recipe,
    seconds: Annotated[float, typer.Option(min=0.1, metavar="S", help="How long in all, without building it.")] = 24.0,
    workers: Annotated[
        list[int] | None,
        typer.Option(
            min=0, max=256, metavar="W", help="Workers to measure, several times; by default up to the cores."
        ),
    ] = None,
    batch: Batch = 16,
    step_time: Annotated[
        float | None, typer.Option(min=1e-6, metavar="S", help="Of a step of the trainer: what does it need?")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say where the time goes, how fast 0, 1, 2 … workers are, and what would help most."""
    from streamdata.tools.profile.make_profile import make_profile, profile_json, profile_text

    dataset = recipe.build()
    with Ticker(plain_interval_s=10.0, columns=(BarColumn(),)) as ticker:
        made = make_profile(
            dataset,
            seconds=seconds,
            workers=workers or None,
            batch_size=batch,
            step_time_s=step_time,
            progressed=ticker.count,
        )
    typer.echo(json.dumps(profile_json(made), allow_nan=False) if as_json else profile_text(made))
