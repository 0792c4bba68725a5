"""Commands about a run of a recipe: `plan` says what it will do, `run` streams it, `profile` times its parts."""

import json
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn

from streamdata.tools.cli.messages import Signals, Ticker, leave_interrupts_to_trainer, say
from streamdata.tools.cli.options import Batch, Json, Ranks, Recipe, Workers, count, option, takes_recipe


@takes_recipe
def plan(
    recipe: Recipe,
    samples: Annotated[int | None, count("Length of the run, in samples of all ranks.")] = None,
    tokens: Annotated[int | None, count("Length of the run in tokens, instead of --samples.")] = None,
    ranks: Ranks = 1,
    workers: Workers = 0,
    batch: Batch = 1,
    read: Annotated[
        int,
        count(
            "Records of each source that are read, to estimate tokens; 0 reads none.", "--read", least=0, metavar="K"
        ),
    ] = 100,
    draws: Annotated[
        int | None,
        count("Show the first K draws of rank 0, worker 0; with --json, 20 by default.", least=0, metavar="K"),
    ] = None,
    balance: Annotated[
        bool,
        option("Say what steps lose to their slowest rank, of a customized_yield_fn that balances.", "--balance"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what a run will read of each source: epochs, repeats, bytes, and what to do about them."""
    if (samples is None) == (tokens is None) and not (balance and samples is None):
        raise typer.BadParameter("expected one of --samples and --tokens", param_hint="--samples")
    from streamdata.tools.plan.make_plan import Amount, make_plan
    from streamdata.tools.plan.plan_text import plan_text
    from streamdata.tools.plan.stragglers import NUM_STEPS

    if samples is None and tokens is None:
        samples = NUM_STEPS * ranks * batch
    amount = Amount(samples, tokens, ranks, workers, batch)
    num_draws = draws if draws is not None else 20 * as_json
    dataset = recipe.build()
    with Ticker(plain_interval_s=10.0, columns=(BarColumn(),)) as ticker:
        made = make_plan(
            dataset, amount, num_sampled=read, num_draws=num_draws, balances=balance, progressed=ticker.count
        )
    if as_json:
        # JSON has no infinite numbers; what is not known of a draw is left out.
        drawn = [{name: value for name, value in asdict(draw).items() if value is not None} for draw in made.draws]
        typer.echo(json.dumps(asdict(made) | {"draws": drawn}, allow_nan=False))
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
    from streamdata.tools.view.shares import Delivery
    from streamdata.tools.view.tree import fitted, tree_rows

    dataset, signals = recipe.build(), context.ensure_object(Signals)
    say(fitted(tree_rows(dataset), (0, 6)))
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
    workers: Annotated[
        list[int] | None,
        option(
            "Workers to measure; may be repeated. By default 0, 1, 2, 4 … up to the cores.", min=0, max=256, metavar="W"
        ),
    ] = None,
    batch: Batch = 16,
    step_time: Annotated[
        float | None,
        option("How long a step of the trainer takes: says how many workers it needs.", min=1e-6, metavar="S"),
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
