"""`streamdata index`: shards → an index of each, and a manifest that lists them; or what differs from it."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, TimeRemainingColumn, TransferSpeedColumn

from streamdata.errors import shown
from streamdata.tools.cli.messages import Ticker, say
from streamdata.tools.cli.options import count, option

if TYPE_CHECKING:
    from streamdata.recipe.limits import ShardLimits
    from streamdata.shards.index.make_manifest import IndexProgress, Inventory
    from streamdata.shards.index.manifest import Manifest


def index(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="What a source's path may be: folders, globs, braces, urls.")
    ],
    jobs: Annotated[int | None, option("Processes; by default one for each core.", "--jobs", "-j", min=1)] = None,
    output: Annotated[
        str | None, option("One manifest of all, here; by default one beside each PATH's shards.", "--output", "-o")
    ] = None,
    check: Annotated[
        bool, option("Only compare: name each shard that differs, and exit 1 if one does.", "--check")
    ] = False,
    endpoint: Annotated[str | None, option("Endpoint of the store that has the shards.", metavar="URL")] = None,
    region: Annotated[str | None, option("Region of its bucket.")] = None,
    profile: Annotated[str | None, option("Profile of its configuration files, whose keys are used.")] = None,
    anonymous: Annotated[bool, option("Do not sign requests.", "--anonymous")] = False,
    line_bytes: Annotated[int | None, count("Bytes of the longest line allowed; by default 64 MiB.")] = None,
    member_bytes: Annotated[
        int | None, count("Bytes of the largest member of a tar allowed; by default 1 GiB.")
    ] = None,
) -> None:
    """Write a manifest of shards and their indexes, or bring them up to date: a run then lists and indexes nothing."""
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
    given_limits = {"line_bytes": line_bytes, "member_bytes": member_bytes}
    limits = read_limits({name: at for name, at in given_limits.items() if at is not None}, ShardLimits, "index")
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
