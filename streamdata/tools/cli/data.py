"""Commands about data: `prepare` and `verify`, of stores; `index`, of shards."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, TimeRemainingColumn, TransferSpeedColumn

from streamdata.errors import RecipeError, shown
from streamdata.tools.cli.messages import Ticker, say
from streamdata.tools.cli.options import Command, CommandGroup, count, option

if TYPE_CHECKING:
    from streamdata.recipe.limits import ShardLimits
    from streamdata.shards.index.make_manifest import IndexProgress, Inventory
    from streamdata.shards.index.manifest import Manifest


_INPUTS = "INPUTS..."


class _InputsOrCommand(CommandGroup):
    """`prepare INPUTS…` and `prepare merge PARTS…`: what does not begin with a command is about inputs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_INPUTS, *(args or ["--help"])]
        return super().parse_args(ctx, args)


class _Inputs(Command):
    """The command `prepare` itself: its usage and its errors name no other command."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(parent.info_name, args, parent.parent, **extra)


prepare = typer.Typer(
    cls=_InputsOrCommand,
    help="Turn JSONL, parquet or text files into a token store: prepare INPUTS… -o OUTPUT -c CONFIG --tokenizer PATH.",
)

_Output = Annotated[Path, option("A new directory, or one of an earlier run of the same.", "--output", "-o")]
_Overwrite = Annotated[bool, option("Start again, whatever an earlier run has written.", "--overwrite")]


@prepare.command(_INPUTS, cls=_Inputs)
def _run(
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="INPUTS", help=".jsonl (.gz …), .parquet, .txt, .json; folders.")
    ] = None,
    output: Annotated[Path | None, option("A new directory, or that of a stopped run.", "--output", "-o")] = None,
    config: Annotated[
        str | None, option("A file, or chat, instruct, preference, pretrain, rollouts, sharegpt.", "--config", "-c")
    ] = None,
    tokenizer: Annotated[str | None, option("The directory of a tokenizer.")] = None,
    store_format: Annotated[str | None, option("bin, h5 or megatron, in place of the config's.", "--format")] = None,
    workers: Annotated[int | None, option("Processes; by default one for each core.", min=1)] = None,
    shard: Annotated[str | None, option("The part of one of N machines: from 0/N to (N-1)/N.", metavar="I/N")] = None,
    engine: Annotated[Literal["local", "ray"], option("Processes of this machine, or of a Ray cluster.")] = "local",
    overwrite: _Overwrite = False,
    dry_run: Annotated[int | None, count("Only show what the first N records become.")] = None,
    schema: Annotated[bool, option("Print the JSON schema of the config.", "--schema")] = False,
) -> None:
    """Turn JSONL, parquet or text files into a token store; `prepare merge` joins the parts of several machines."""
    from streamdata.prepare import Pipeline, PrepareConfig, load_config
    from streamdata.prepare.config import config_path

    if schema:
        typer.echo(json.dumps(PrepareConfig.model_json_schema(), indent=2))
        return
    if not (inputs and config and tokenizer and (output or dry_run)):
        given = {"INPUTS": inputs, "--output": output or dry_run, "--config": config, "--tokenizer": tokenizer}
        missing = ", ".join(name for name, value in given.items() if not value)
        raise typer.BadParameter(f"missing {missing}", param_hint="prepare")
    try:
        path = config_path(config)
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--config") from error
    settings = load_config(path).model_dump(exclude_unset=True)
    pipeline = Pipeline(settings if store_format is None else settings | {"format": store_format}, tokenizer)
    if dry_run is not None:
        from streamdata.tools.cli.show import show_prepared

        show_prepared(pipeline, inputs, dry_run)
        return
    assert output, "it is given"
    given_shard = _shard(shard)
    with Ticker() as ticker:
        manifest = pipeline.run(
            inputs,
            output,
            workers=workers or len(os.sched_getaffinity(0)),
            shard=given_shard,
            engine=engine,
            overwrite=overwrite,
            progress=lambda progress: ticker.tick(progress.line),
        )
    _say_made(manifest, output)


def _say_made(manifest: dict[str, Any], output: Path) -> None:
    from streamdata.prepare.finished_runs import summary
    from streamdata.prepare.run_directory import RunDirectory

    say(summary(manifest) + RunDirectory(output).first_bad())


@prepare.command(cls=Command)
def merge(
    parts: Annotated[list[Path], typer.Argument(help="The outputs of --shard 0/n to (n-1)/n.", exists=True)],
    output: _Output,
    overwrite: _Overwrite = False,
) -> None:
    """Join the outputs of all parts of a run, without copying tokens."""
    from streamdata.prepare import merge as merge_parts

    _say_made(merge_parts(parts, output, overwrite=overwrite), output)


_Store = Annotated[Path, typer.Argument(help="A store, or the output of prepare.", exists=True, file_okay=False)]


def verify(
    store: _Store,
    write_sums: Annotated[bool, option("If all is right, write sums, which reading checks.", "--write-sums")] = False,
) -> None:
    """Check counts, ids and checksums of a finished store."""
    from streamdata.prepare import finished_runs
    from streamdata.prepare.run_directory import RunDirectory
    from streamdata.stores.factory import open_store
    from streamdata.stores.stored_values import publish_sums

    problems = finished_runs.verify(store)
    for problem in problems:
        say(f"error: {problem}", err=True)
    say(f"{store}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'}")
    if problems:
        raise typer.Exit(1)
    directory = RunDirectory(store)
    data = directory.data if directory.manifest.exists() else directory.path
    files = open_store(data, verify=False).files_without_sums()
    if write_sums:
        for file in files:
            publish_sums(file)
        say(f"files that got sums: {len(files)}")
    elif files:
        say(f"files without sums, in which damage is read in silence: {len(files)}; --write-sums adds them")


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise typer.BadParameter(f"expected I/N with I below N, such as 0/4, got {shown(text)}", param_hint="--shard")
    return int(index), int(count)


def index(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="As a source's: folders, globs, braces, urls.")],
    jobs: Annotated[int | None, option("Processes; by default one for each core.", "--jobs", "-j", min=1)] = None,
    output: Annotated[str | None, option("One manifest of all, not one beside each PATH.", "--output", "-o")] = None,
    check: Annotated[bool, option("Only compare; exit 1 where a shard differs.", "--check")] = False,
    endpoint: Annotated[str | None, option("Endpoint of the store that has the shards.", metavar="URL")] = None,
    region: Annotated[str | None, option("Region of its bucket.")] = None,
    profile: Annotated[str | None, option("Profile of its configuration files, whose keys are used.")] = None,
    anonymous: Annotated[bool, option("Do not sign requests.", "--anonymous")] = False,
    line_bytes: Annotated[int | None, count("Bytes of the longest line allowed; by default 64 MiB.")] = None,
    member_bytes: Annotated[int | None, count("Bytes of a tar's largest member allowed; by default 1 GiB.")] = None,
) -> None:
    """Write a manifest of shards and their indexes, or bring them up to date: a run then lists and indexes nothing.

    It reads no recipe: outside AWS set AWS_ENDPOINT_URL, or give --endpoint.
    """
    if output is not None and not output.endswith(".manifest"):
        raise typer.BadParameter(f"expected a name that ends in .manifest, got {shown(output)}", param_hint="--output")
    from streamdata.io.remote.addresses import checked_options
    from streamdata.recipe.limits import ShardLimits, read_limits
    from streamdata.shards.index.make_manifest import take_stock

    given = {"endpoint": endpoint, "region": region, "profile": profile, "anonymous": anonymous or None}
    options = checked_options(given, "index")
    stocks = [take_stock(paths, output, options)] if output else [take_stock([path], options=options) for path in paths]
    if check:
        from streamdata.shards.index.make_manifest import differences

        wrong: list[str] = []
        for stock in stocks:
            manifest = _opened(stock.target)
            lines = differences(stock, manifest)
            say("\n".join([*lines, f"{stock.target}: {f'{len(lines)} differ' if lines else 'nothing differs'}"]))
            wrong += lines
        raise typer.Exit(1 if wrong else 0)
    bounds = {"line_bytes": line_bytes, "member_bytes": member_bytes}
    limits = read_limits({name: at for name, at in bounds.items() if at is not None}, ShardLimits, "index")
    for stock in stocks:
        _index(stock, jobs, limits)


def _index(stock: "Inventory", num_processes: int | None, limits: "ShardLimits") -> None:
    """Make the manifest of some shards, and say what is in it."""
    from streamdata.shards.index.indexing import COUNT_KINDS
    from streamdata.shards.index.make_manifest import make_manifest

    columns = (BarColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Ticker(plain_interval_s=10.0, columns=columns) as ticker:

        def report(done: "IndexProgress") -> None:
            megabytes = f"{done.bytes / 1e6:,.0f} of {done.total_bytes / 1e6:,.0f} MB"
            line = f"indexing: {done.shards}/{done.total_shards} shards, {megabytes}"
            ticker.tick(lambda: line, done.bytes, done.total_bytes)

        made = make_manifest(stock, report, num_processes, limits)
    said = _opened(made).said
    # What of an index says how many records its shard has, by kind.
    counted = {"jsonl": "num_records", "tar": "num_records", **dict.fromkeys(COUNT_KINDS, "noted")}
    records = sum(int(said.indexes[kind][column].sum()) for kind, column in counted.items() if kind in said.indexes)
    size = int(said.sizes.sum()) / 1e6
    say(f"{made}: {len(said.names):,} files, {size:,.1f} MB, {records:,} records")


def _opened(url: str) -> "Manifest":
    from streamdata.shards.index.manifest import open_manifest

    found = open_manifest(url)
    if found is None:
        raise FileNotFoundError(f"index: expected a manifest '{url}', got none\n  Make it: streamdata index PATH.")
    return found
