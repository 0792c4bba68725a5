"""Commands about a run of a recipe, before and after it.

`plan` says what it will do, `run` streams it, `profile` times its parts; `state` says what states hold, `trace` which
records made the batch of a step.
"""

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn

from streamdata.errors import one_line, shown
from streamdata.tools.cli.messages import Signals, Ticker, leave_interrupts_to_trainer, say
from streamdata.tools.cli.options import Batch, Json, Ranks, Recipe, StateFiles, Workers, count, option, takes_recipe

if TYPE_CHECKING:
    from streamdata.tools.trace.trace import TracedStep


@takes_recipe
def plan(
    recipe: Recipe,
    samples: Annotated[int | None, count("Length of the run, in samples of all ranks.")] = None,
    tokens: Annotated[int | None, count("Length of the run in tokens, instead of --samples.")] = None,
    ranks: Ranks = 1,
    workers: Workers = 0,
    batch: Batch = 1,
    read: Annotated[int, count("Records of each source that are read, to estimate tokens.", least=0)] = 100,
    draws: Annotated[int, count("Show the first draws of rank 0, worker 0.", least=0)] = 0,
    balance: Annotated[bool, option("Say what steps lose to their slowest rank.", "--balance")] = False,
    as_json: Json = False,
) -> None:
    """Say what a run will read of each source: epochs, repeats, bytes, and what to do about them.

    Its advice keeps a source within 4 epochs: up to there repeated text is nearly
    as good as new ("Scaling Data-Constrained Language Models", arXiv 2305.16264).
    """
    if (samples is None) == (tokens is None) and not (balance and samples is None):
        raise typer.BadParameter("expected one of --samples and --tokens", param_hint="--samples")
    from streamdata.tools.plan.make_plan import Amount, Planner, plan_text
    from streamdata.tools.plan.stragglers import NUM_STEPS

    if samples is None and tokens is None:
        samples = NUM_STEPS * ranks * batch
    amount = Amount(samples, tokens, ranks, workers, batch)
    dataset = recipe.build()
    with Ticker(plain_interval_s=10.0, columns=(BarColumn(),)) as ticker:
        made = Planner(dataset, amount, read, ticker.count).plan(draws, balances=balance)
    if as_json:
        typer.echo(json.dumps(asdict(made), allow_nan=False))  # JSON has no infinite numbers
    else:
        Console(highlight=False, soft_wrap=True).print(plan_text(made))


@takes_recipe
def run(
    recipe: Recipe,
    context: typer.Context,
    batches: Annotated[int | None, count("Stop after N batches; by default at the end, or at Ctrl-C.")] = None,
    batch: Batch = 16,
    workers: Workers = 0,
) -> None:
    """Stream a recipe through a DataLoader; report samples/s, bytes/s, and the share of each source."""
    from torch.utils.data import DataLoader

    from streamdata.delivery import mixed_collate
    from streamdata.tools.view.totals import Delivery
    from streamdata.tools.view.tree import table, tree_rows

    dataset, signals = recipe.build(), context.ensure_object(Signals)
    say(table(tree_rows(dataset), (0, 6)))
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch,
        num_workers=workers,
        collate_fn=mixed_collate,
        worker_init_fn=leave_interrupts_to_trainer,
    )
    delivery = Delivery(dataset)
    try:
        with Ticker(Console()) as ticker:
            for delivered in islice(signals.held_within(loader), batches):
                delivery.add(delivered)
                ticker.tick(delivery.line)
    except Exception as error:
        dataset.note_dead_workers(error)
        raise
    finally:
        say(delivery.summary())


@takes_recipe
def profile(
    recipe: Recipe,
    seconds: Annotated[float, option("How long to measure in all.", min=0.1, metavar="S")] = 24.0,
    workers: Annotated[list[int] | None, option("Workers to try; by default up to the cores.", min=0, max=256)] = None,
    batch: Batch = 16,
    step_time: Annotated[float | None, option("Seconds of a trainer's step, to say what it needs.", min=1e-6)] = None,
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


def state(
    files: StateFiles,
    output: Annotated[Path | None, option("Only join the states, into this JSON file.", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Say what states hold: topologies, weights, what was delivered of each source, which ranks are missing."""
    if output is not None and as_json:
        raise typer.BadParameter("expected --json without --output", param_hint="--output")
    from streamdata.run.publish import publish
    from streamdata.states.joining import merge_states
    from streamdata.states.loading import read_states
    from streamdata.tools.view.totals import describe_states, states_as_json, totals_of

    found = read_states(files)
    states = found[0].states if len(found) == 1 else merge_states(*(read.states for read in found))
    origin = "; ".join(read.origin for read in found if read.origin)
    if output is not None:
        publish(output, [json.dumps(dict(states)).encode(), b"\n"])
        say(f"{output}: {len(states):,} entries, {output.stat().st_size:,} bytes")
    elif as_json:
        typer.echo(json.dumps({**asdict(totals_of(states)), **states_as_json(states), "origin": origin}))
    else:
        names = ", ".join(map(str, files))
        say(one_line(f"{names}: {origin}" if origin else names))
        say(describe_states(states))


@takes_recipe
def trace(
    recipe: Recipe,
    files: StateFiles,
    step: Annotated[int | None, count("The step whose records are named, counted from 1 over all resumes.")] = None,
    find: Annotated[str | None, option("A record: at which steps it came.", metavar="URL#KEY|SOURCE#INDEX")] = None,
    batch: Annotated[int | None, count("Samples in a batch of one rank, of steps to come.", metavar="B")] = None,
    batches_per_step: Annotated[int | None, count("Batches in a step, where one save alone does not tell.")] = None,
    as_json: Json = False,
) -> None:
    """Say which records made the batch of a step; or at which steps a record came or comes.

    For a step before the number of ranks or workers last changed, give also
    states that were saved between that step and the change.
    """
    if (step is None) == (find is None):
        raise typer.BadParameter("expected --step or --find", param_hint="--step")
    if find is not None and "#" not in find:
        raise typer.BadParameter(f"expected URL#KEY or SOURCE#INDEX, got {shown(find)}", param_hint="--find")
    from streamdata.states.loading import read_states
    from streamdata.tools.trace.trace import Trace, count_steps

    groups: dict[Path, list[Path]] = {}  # files of ranks are joined where they are in one folder, that of a step
    for path in files:
        groups.setdefault(path.parent if path.is_file() else path, []).append(path)
    found = [read for group in groups.values() for read in read_states(group)]
    steps = count_steps([(read.step, read.states) for read in found], batches_per_step)
    traced = Trace(recipe.build(), [read.states for read in found], batch, steps=steps)
    if steps != (1, 0):
        factor = "(N - 1)" if steps.batches == 1 else f"{steps.batches:,} (N - 1)"
        first = f"{factor} {'-' if steps.offset < 0 else '+'} {abs(steps.offset + 1):,}"  # counted from 1
        say(f"step N has {steps.batches:,} batches, the first of them number {first}", err=True)
    with Ticker(plain_interval_s=2.0) as ticker:
        traced.on_progress = lambda done, total: ticker.tick(lambda: f"looked through {done:,} of {total:,}")
        if find is None:
            made = traced.at(step or 1)
        else:
            came = traced.find(find)
    if find is not None:
        if as_json:
            typer.echo(json.dumps({"find": find, "steps": came, "delivered": traced.num_steps}))
        elif came:
            ahead = ", which is still to come"
            typer.echo("\n".join(f"step {number}{'' if number <= traced.num_steps else ahead}" for number in came))
        else:
            typer.echo(f"{one_line(find)}: it came at no step, and does not come", err=True)
        raise typer.Exit(0 if came else 1)
    _show_records(made, as_json=as_json)


def _show_records(traced: "TracedStep", *, as_json: bool) -> None:
    from streamdata.tools.trace.era import document_name
    from streamdata.tools.view.tree import table

    if as_json:
        found = {"step": traced.step, "records": traced.records, "how": traced.how, "from": traced.origin}
        typer.echo(json.dumps(found))
        return
    begin = f"step {traced.origin} on" if traced.origin > 0 else "the start"
    how = "sought" if traced.how == "seek" else "read again"
    say(f"step {traced.step}: {len(traced.records)} samples, {how} from {begin}")
    rows = [["source", "row", "record"]]
    for row, sample in enumerate(traced.records):
        for record in sample.get("documents", [sample]):
            tokens = f", tokens {record['begin']} to {record['end'] - 1}" if "begin" in record else ""
            rows.append([record["source"], f"{row}", f"{document_name(record)}{tokens}"])
    say(table(rows, (0, 2)))
