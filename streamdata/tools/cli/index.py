"""`streamdata index`: shards → one manifest that lists them, with all their indexes; or what differs from it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from streamdata.io.remote import StorageOptions
from streamdata.recipe.limits import ShardLimits, read_limits
from streamdata.shards.index.inventory import Inventory, take_stock
from streamdata.shards.index.make_manifest import IndexProgress, Report, differences, make_manifest
from streamdata.shards.index.manifest import Manifest
from streamdata.shards.index.manifest_file import ManifestRows, open_manifest
from streamdata.shards.index.record_counts import COUNT_KINDS
from streamdata.tools.cli.messages import say

_PLAIN_INTERVAL_S = 10.0
_COUNTED = {"jsonl": "num_records", "tar": "num_records", **dict.fromkeys(COUNT_KINDS, "noted")}
"""What of an index says how many records its shard has, by kind."""


def index_shards(
    paths: Sequence[str],
    output: str | None,
    options: StorageOptions,
    num_processes: int | None,
    limits: Mapping[str, int] | None = None,
) -> None:
    """Make the manifest of each path, or one of all where the output says so, and say what is in it.

    Args:
        paths: What the `path` of a source may be.
        output: The manifest of all.
        options: Of the stores that hold the shards.
        num_processes: How many index local shards at the same time.
        limits: What a line or a member may have, as a source takes them.

    Raises:
        FileNotFoundError: There is no shard.
        ShardError: A shard is damaged.
    """
    for stock in _stocks(paths, output, options):
        with _bar() as report:
            made = make_manifest(stock, report, num_processes, read_limits(limits, ShardLimits, "index"))
        directory = _opened(made)[0].directory
        indexes = directory.indexes
        records = sum(int(indexes[kind][column].sum()) for kind, column in _COUNTED.items() if kind in indexes)
        size = int(directory.sizes.sum()) / 1e6
        say(f"{made}: {len(directory.names):,} files, {size:,.1f} MB, {records:,} records")


def check_shards(paths: Sequence[str], output: str | None, options: StorageOptions) -> bool:
    """Compare manifests with the shards that are there, and name each that differs; return whether none does.

    Raises:
        FileNotFoundError: There is no manifest, or no shard.
        ShardError: The manifest is damaged.
    """
    num_wrong = 0
    for stock in _stocks(paths, output, options):
        manifest, rows = _opened(stock.target)
        lines = [*differences(stock, manifest), *rows.damages(manifest)]
        say("\n".join([*lines, f"{stock.target}: {f'{len(lines)} differ' if lines else 'all is as it says'}"]))
        num_wrong += len(lines)
    return not num_wrong


def _stocks(paths: Sequence[str], output: str | None, options: StorageOptions) -> list[Inventory]:
    if output:
        return [take_stock(paths, output, options)]
    return [take_stock([path], options=options) for path in paths]


def _opened(url: str) -> tuple[Manifest, ManifestRows]:
    found = open_manifest(url)
    if found is None:
        raise FileNotFoundError(f"index: expected a manifest '{url}', got none\n  Make it: streamdata index PATH.")
    return found


@contextmanager
def _bar() -> Iterator[Report]:
    """A bar on a terminal, else a line every ten seconds."""
    console = Console(stderr=True)
    shards = TextColumn("indexing {task.fields[shards]} shards")
    columns = (shards, BarColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", shards="")
        last = time.monotonic()

        def report(done: IndexProgress) -> None:
            nonlocal last
            text = f"{done.shards}/{done.total_shards}"
            bar.update(task, completed=done.bytes, total=done.total_bytes, shards=text)
            if not console.is_terminal and time.monotonic() > last + _PLAIN_INTERVAL_S:
                last = time.monotonic()
                say(f"indexing: {text} shards, {done.bytes / 1e6:,.0f} of {done.total_bytes / 1e6:,.0f} MB", err=True)

        yield report
