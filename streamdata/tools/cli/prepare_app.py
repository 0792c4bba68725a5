"""The commands about stores, and their options. What they do is imported when they run: `--help` imports no torch."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from streamdata.errors import shown
from streamdata.tools.cli.flags import FlagsCommand, FlagsGroup
from streamdata.tools.cli.messages import messages
from streamdata.tools.cli.options import MAX_COUNT

_INPUTS = "INPUTS..."
_USERS = (OSError, ImportError, ValueError)
"""Errors of what the user named or lacks: a path, a disk, a tokenizer, an optional library. Their message says it."""


class _InputsOrCommand(FlagsGroup):
    """`prepare INPUTS…` and `prepare merge PARTS…`: what does not begin with a command is about inputs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_INPUTS, *(args or ["--help"])]
        return super().parse_args(ctx, args)


class _Inputs(FlagsCommand):
    """What `prepare` itself does: its usage and its errors name no other command."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(parent.info_name, args, parent.parent, **extra)


prepare = typer.Typer(
    cls=_InputsOrCommand,
    help="Turn JSONL, parquet or text files into a token store: prepare INPUTS… -o OUTPUT -c CONFIG --tokenizer PATH.",
)

_Output = Annotated[Path, typer.Option("--output", "-o", help="A new directory, or one of an earlier run of the same.")]
_Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE|PRESET",
        help="How records become tokens: a file, or chat, instruct, preference, pretrain, rollouts, sharegpt.",
    ),
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start again, whatever an earlier run has written.")]


@prepare.command(_INPUTS, cls=_Inputs)
def _run(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUTS",
            help=".jsonl (.gz, .zst …), .parquet, .txt (one document each), .json by name or glob; directories too.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; a run goes on there.")] = None,
    config: _Config = None,
    tokenizer: Annotated[str | None, typer.Option(help="The directory of a tokenizer.")] = None,
    store_format: Annotated[
        str | None, typer.Option("--format", help="bin, h5 or megatron, over the config's.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="One machine's part: from 0/N to (N-1)/N.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray: the machines of a Ray cluster.")] = "local",
    overwrite: _Overwrite = False,
    dry_run: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, metavar="N", help="Only show what the first N records become.")
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the config.")] = False,
) -> None:
    """Turn JSONL, parquet or text files into a token store; `prepare merge` joins the parts of several machines."""
    from streamdata.tools.cli import prepare as command

    with messages(*_USERS):
        if schema:
            command.show_schema()
            return
        given = {"INPUTS": inputs, "--output": output or dry_run, "--config": config, "--tokenizer": tokenizer}
        if missing := [name for name, value in given.items() if not value]:
            raise typer.BadParameter(f"missing {', '.join(missing)}", param_hint="prepare")
        assert inputs and config and tokenizer, "they are given"  # noqa: PT018  # for mypy alone
        pipeline = command.make_pipeline(config, tokenizer, store_format)
        if dry_run is not None:
            command.show_first(pipeline, inputs, dry_run)
            return
        assert output, "it is given"
        command.run_pipeline(
            pipeline,
            inputs,
            output,
            workers=workers or len(os.sched_getaffinity(0)),
            shard=_shard(shard),
            engine=_engine(engine),
            overwrite=overwrite,
        )


@prepare.command(cls=FlagsCommand)
def merge(
    parts: Annotated[list[Path], typer.Argument(help="The outputs of --shard 0/n to (n-1)/n.", exists=True)],
    output: _Output,
    overwrite: _Overwrite = False,
) -> None:
    """Join the outputs of all parts of a run, without copying tokens."""
    with messages(*_USERS):
        from streamdata.tools.cli.prepare import merge_parts

        merge_parts(parts, output, overwrite=overwrite)


_Store = Annotated[Path, typer.Argument(help="A store, or the output of prepare.", exists=True, file_okay=False)]


def verify(
    store: _Store,
    write_sums: Annotated[
        bool, typer.Option("--write-sums", help="If nothing is wrong, write sums of blocks, which reading checks.")
    ] = False,
) -> None:
    """Check counts, ids and checksums of a finished store."""
    with messages(*_USERS):
        from streamdata.tools.cli.prepare import show_problems

        raise typer.Exit(0 if show_problems(store, add_sums=write_sums) else 1)


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise typer.BadParameter(f"expected I/N with I below N, such as 0/4, got {shown(text)}", param_hint="--shard")
    return int(index), int(count)


def _engine(name: str) -> Any:
    if name not in {"local", "ray"}:
        raise typer.BadParameter(f"expected local or ray, got {shown(name)}", param_hint="--engine")
    return name
