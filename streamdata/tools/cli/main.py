"""The commands and their options. What they do is imported when they run: `--help` imports no torch."""

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from streamdata.errors import shown
from streamdata.tools.cli.flags import FlagsCommand, FlagsGroup
from streamdata.tools.cli.interrupt import INTERRUPTED
from streamdata.tools.cli.messages import messages
from streamdata.tools.cli.options import (
    MAX_COUNT,
    MAX_RANKS,
    Allow,
    Batches,
    BatchSize,
    Import,
    IncludeRoot,
    Json,
    Recipe,
    Traceback,
    Variables,
    Workers,
    checked_allow,
    parse_variables,
    texts,
)
from streamdata.tools.cli.prepare_app import prepare, verify

app = typer.Typer(
    cls=FlagsGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a plain traceback is shorter, and has the notes that say source, url and key
    help="One YAML recipe in, one endless stream of training samples out.",
)


app.add_typer(prepare, name="prepare")
app.command(cls=FlagsCommand)(verify)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"streamdata {version('torch-streamdata')}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _streamdata(_: _Version = False) -> None:
    # Targets may lie in the directory where the command is run; last, so that they shadow nothing.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    # It would show each attempt to reach the hub, before the one message that says it cannot be reached.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")


@app.command(cls=FlagsCommand)
def run(
    recipe: Recipe,
    var: Variables = None,
    batches: Batches = None,
    batch_size: BatchSize = 16,
    workers: Workers = 0,
    allow: Allow = None,
    include_root: IncludeRoot = None,
    traceback: Traceback = False,
) -> None:
    """Stream a recipe through a DataLoader; report samples/s, MB/s, and the share of each source."""
    variables, allowed = parse_variables(var), checked_allow(allow)
    with messages(Exception, with_traceback=traceback):
        from streamdata.tools.cli.run import run_recipe

        finished = run_recipe(
            recipe,
            variables,
            allowed,
            batches=batches,
            batch_size=batch_size,
            workers=workers,
            include_roots=texts(include_root),
        )
        raise typer.Exit(0 if finished else INTERRUPTED)


@app.command(cls=FlagsCommand)
def check(
    recipe: Recipe,
    var: Variables = None,
    allow: Allow = None,
    imports: Import = None,
    include_root: IncludeRoot = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Also build it, draw samples, and see whether a resume gives the same.")
    ] = False,
    no_files: Annotated[
        bool, typer.Option("--no-files", help="Do not look whether shards, stores and tokenizers are there.")
    ] = False,
    online: Annotated[
        bool, typer.Option("--online", help="Look for those in stores elsewhere and on the hub, too.")
    ] = False,
    data: Annotated[
        bool, typer.Option("--data", help="Also read every record once, and list all that is wrong with them.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes that read; by default one for each core.")
    ] = None,
    traceback: Traceback = False,
) -> None:
    """Report all errors of a recipe at once, with file and line; builds nothing, imports what you name."""
    if jobs is not None and not data:
        raise typer.BadParameter("expected --data with it", param_hint="--jobs")
    variables, allowed = parse_variables(var), checked_allow(allow)
    with messages(Exception, with_traceback=traceback):
        from streamdata.tools.cli.check import check_problems, check_resume

        roots = texts(include_root)
        passed = check_problems(
            recipe,
            variables,
            allowed,
            imports=checked_allow(imports, "--import") or (),
            with_files=not no_files,
            online=online,
            include_roots=roots,
        )
        if passed and resume:
            passed = check_resume(recipe, variables, allowed, roots)
        if passed and data:
            from streamdata.tools.cli.check_data import check_data

            passed = check_data(recipe, variables, allowed, jobs, roots)
        raise typer.Exit(0 if passed else 1)


@app.command(cls=FlagsCommand)
def plan(
    recipe: Recipe,
    samples: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, metavar="N", help="Samples that the job takes.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, metavar="N", help="Or tokens that it takes.")
    ] = None,
    dp: Annotated[int, typer.Option("--dp", min=1, max=MAX_RANKS, metavar="D", help="Data-parallel ranks.")] = 1,
    workers: Annotated[int, typer.Option(min=0, max=256, metavar="W", help="Workers of each rank.")] = 0,
    batch: Annotated[int, typer.Option(min=1, max=MAX_COUNT, metavar="B", help="Samples in a batch of one rank.")] = 1,
    sample: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_COUNT, metavar="K", help="Records that are read of each source, to know it; 0 reads none."
        ),
    ] = 100,
    draws: Annotated[
        int | None,
        typer.Option(
            min=0, max=MAX_COUNT, metavar="K", help="Show the first draws of rank 0, worker 0; with --json 20 of them."
        ),
    ] = None,
    json: Json = False,
    var: Variables = None,
    allow: Allow = None,
    include_root: IncludeRoot = None,
    traceback: Traceback = False,
) -> None:
    """Say what a run will read of each source: epochs, repeats, bytes, and what to do about them."""
    if (samples is None) == (tokens is None):
        raise typer.BadParameter("expected one of --samples and --tokens", param_hint="--samples")
    variables, allowed = parse_variables(var), checked_allow(allow)
    with messages(Exception, with_traceback=traceback):
        from streamdata.tools.cli.plan import show_plan
        from streamdata.tools.plan.make_plan import Amount

        amount = Amount(samples, tokens, dp, workers, batch)
        num_draws = draws if draws is not None else 20 * json
        show_plan(
            recipe,
            variables,
            allowed,
            amount,
            num_sampled=sample,
            num_draws=num_draws,
            as_json=json,
            include_roots=texts(include_root),
        )


@app.command(cls=FlagsCommand)
def profile(
    recipe: Recipe,
    seconds: Annotated[float, typer.Option(min=0.1, metavar="S", help="How long in all, without building it.")] = 24.0,
    workers: Annotated[
        list[int] | None,
        typer.Option(
            min=0, max=256, metavar="W", help="Workers to measure, several times; by default up to the cores."
        ),
    ] = None,
    batch_size: BatchSize = 16,
    step_time: Annotated[
        float | None, typer.Option(min=1e-6, metavar="S", help="Of a step of the trainer: what does it need?")
    ] = None,
    json: Json = False,
    var: Variables = None,
    allow: Allow = None,
    include_root: IncludeRoot = None,
    traceback: Traceback = False,
) -> None:
    """Say where a worker's time goes, how fast 0, 1, 2 … workers are, and what would help most."""
    variables, allowed = parse_variables(var), checked_allow(allow)
    with messages(Exception, with_traceback=traceback):
        from streamdata.tools.cli.profile import show_profile

        show_profile(
            recipe,
            variables,
            allowed,
            seconds=seconds,
            workers=workers or None,
            batch_size=batch_size,
            step_time_s=step_time,
            as_json=json,
            include_roots=texts(include_root),
        )


@app.command(cls=FlagsCommand)
def index(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="What a source's path may be: folders, globs, braces, urls.")
    ],
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes; by default one for each core.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="One manifest of all, here; by default one beside each PATH's shards."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare: name each shard that differs, and exit 1 if one does.")
    ] = False,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="Of the API of the shards' store.")] = None,
    region: Annotated[str | None, typer.Option(help="Of its bucket.")] = None,
    profile: Annotated[str | None, typer.Option(help="Of its configuration files, whose keys are taken.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Do not sign requests.")] = False,
    line_bytes: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Of a line; by default 64 MiB.")] = None,
    member_bytes: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Of a member of a tar; by default 1 GiB.")
    ] = None,
) -> None:
    """Write a manifest of shards, or bring it up to date: who reads them then lists nothing and indexes nothing."""
    if output is not None and not output.endswith(".manifest"):
        raise typer.BadParameter(f"expected a name that ends in .manifest, got {shown(output)}", param_hint="--output")
    with messages(OSError, ValueError):
        from streamdata.io.remote import checked_options
        from streamdata.tools.cli.index import check_shards, index_shards

        given = {"endpoint": endpoint, "region": region, "profile": profile, "anonymous": anonymous or None}
        options = checked_options(given, "index")
        if check:
            raise typer.Exit(0 if check_shards(paths, output, options) else 1)
        limits = {"line_bytes": line_bytes, "member_bytes": member_bytes}
        index_shards(paths, output, options, jobs, {name: at for name, at in limits.items() if at is not None})


@app.command(cls=FlagsCommand)
def state(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Files of states, the folder of a step, or the directory of several.", exists=True
        ),
    ],
    merge: Annotated[bool, typer.Option("--merge", help="Join them, and write them to --output.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The JSON file to write.", dir_okay=False)
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", metavar="OTHER", help="What FILE holds more than these states.", exists=True),
    ] = None,
    json: Json = False,
) -> None:
    """Say what states hold: topologies, weights, what was delivered of each source, which ranks are missing."""
    if merge != (output is not None):
        raise typer.BadParameter("expected --merge, and the file to write", param_hint="--output")
    if output is not None and (diff is not None or json):
        raise typer.BadParameter("expected --diff and --json without --output", param_hint="--output")
    with messages(OSError):
        from streamdata.tools.cli.state import show_states, write_states

        if output is None:
            show_states(files, diff, as_json=json)
        else:
            write_states(files, output)


@app.command(cls=FlagsCommand)
def show(
    target: Annotated[
        Path,
        typer.Argument(metavar="RECIPE|STORE", help="A recipe, a store, or what prepare wrote.", show_default=False),
    ],
    source: Annotated[str, typer.Option(help="Samples of this source or mixture alone, by its path of names.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=MAX_COUNT, help="How many samples.")] = 20,
    step: Annotated[
        int | None,
        typer.Option(min=0, max=MAX_COUNT, help="Begin at this step of the run, or at this record of a store."),
    ] = None,
    rank: Annotated[int, typer.Option(min=0, max=MAX_RANKS - 1, help="Whose samples.")] = 0,
    dp: Annotated[
        int | None, typer.Option("--dp", min=1, max=MAX_RANKS, help="How many ranks; by default as in the states.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Samples of a rank in a step; by default as in the states.")
    ] = None,
    states: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="The run's states; as of `state`.", exists=True)
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Of a store that does not say its own.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a store's tokens, for a file that does not say it.")] = None,
    json: Json = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page, which needs no network.", dir_okay=False),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser", help="Serve pages at 127.0.0.1 until Ctrl-C, -n samples each; print the url.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the pages; 0 takes one that is free.")] = 0,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not start a browser.")] = False,
    var: Variables = None,
    allow: Allow = None,
    include_root: IncludeRoot = None,
    traceback: Traceback = False,
) -> None:
    """Look at samples: fields, tokens with what is trained of them, images, and the raw records."""
    variables, allowed = parse_variables(var), checked_allow(allow)
    with messages(Exception, with_traceback=traceback):
        from streamdata.tools.cli.show import ShowOptions, show_target

        options = ShowOptions(
            count=number,
            source=source,
            step=step,
            rank=rank,
            dp_size=dp,
            batch=batch,
            states=states or (),
            tokenizer=tokenizer,
            dtype=dtype,
            as_json=json,
            html=html,
            include_roots=texts(include_root),
            browser=browser,
            port=port,
            opens=not no_open,
        )
        show_target(target, variables, allowed, options)


@app.command(cls=FlagsCommand)
def trace(
    recipe: Recipe,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="States: files, or the folders of steps. Of several times, the nearest counts. For a step before the "
            "number of ranks or workers last changed: also some saved under that number, or those that it began from.",
            exists=True,
        ),
    ],
    step: Annotated[
        int | None, typer.Option(min=0, max=MAX_COUNT, metavar="K", help="Counts from 0, over all resumes.")
    ] = None,
    find: Annotated[
        str | None, typer.Option(metavar="URL#KEY", help="Or SOURCE#INDEX: at which steps this record came or comes.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_COUNT, metavar="B", help="Samples in one rank's batch; by default as in the states."
        ),
    ] = None,
    var: Variables = None,
    allow: Allow = None,
    include_root: IncludeRoot = None,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Say which records made the batch of a step; or at which steps a record came or comes."""
    if (step is None) == (find is None):
        raise typer.BadParameter("expected --step or --find", param_hint="--step")
    if find is not None and "#" not in find:
        raise typer.BadParameter(f"expected URL#KEY or SOURCE#INDEX, got {shown(find)}", param_hint="--find")
    variables, allowed = parse_variables(var), checked_allow(allow)
    with messages(Exception, with_traceback=traceback):
        from streamdata.tools.cli.trace import find_record, open_trace, trace_step

        traced = open_trace(recipe, files, variables, allowed, batch, texts(include_root))
        if find is not None:
            raise typer.Exit(0 if find_record(traced, find, as_json=json) else 1)
        trace_step(traced, step or 0, as_json=json)
