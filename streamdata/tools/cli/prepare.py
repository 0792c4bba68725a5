"""Commands about stores: `prepare` makes one of raw records, `prepare merge` joins its parts, `verify` checks it."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streamdata.errors import RecipeError, shown
from streamdata.tools.cli.messages import Ticker, say
from streamdata.tools.cli.options import Command, CommandGroup, count, option

if TYPE_CHECKING:
    pass

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
_Config = Annotated[
    str | None,
    option(
        "How records become tokens: a file, or chat, instruct, preference, pretrain, rollouts, sharegpt.",
        "--config",
        "-c",
        metavar="FILE|PRESET",
    ),
]
_Overwrite = Annotated[bool, option("Start again, whatever an earlier run has written.", "--overwrite")]


@prepare.command(_INPUTS, cls=_Inputs)
def _run(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUTS",
            help=".jsonl (.gz, .zst …), .parquet, .txt (one document each), .json by name or glob; directories too.",
        ),
    ] = None,
    output: Annotated[
        Path | None, option("The directory to write; a run that was stopped goes on there.", "--output", "-o")
    ] = None,
    config: _Config = None,
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
    write_sums: Annotated[
        bool, option("If nothing is wrong, write sums of blocks, which reading checks.", "--write-sums")
    ] = False,
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
