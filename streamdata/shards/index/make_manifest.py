"""Making manifests: `patterns → inventory → indexes, many at a time → one manifest beside the shards, or where told`.

What an earlier manifest says of shards that are the same is taken from it; indexes that are built are kept in the cache
until the manifest is there, so that a run that was killed goes on where it was.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamdata.errors import ShardError, one_line, printable, shown
from streamdata.io.file_cache import locked
from streamdata.io.remote.addresses import NO_OPTIONS, Address, StorageOptions, bare_url, beside
from streamdata.io.remote.once import check_can_put, list_once, put_once
from streamdata.io.remote.requests import DeniedError
from streamdata.io.storage import (
    NO_STAMP,
    FileStamp,
    is_pipe,
    is_remote,
    local_path,
    stamps_there,
    version_of_stamp,
)
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.publish import publish_made
from streamdata.shards.index.index_file import IndexDamageError, IndexHeader
from streamdata.shards.index.indexing import (
    JOIN,
    KINDS,
    IndexJob,
    build,
    build_missing,
    find,
    forget_cached,
    open_index,
    sidecar_kind,
)
from streamdata.shards.index.manifest import (
    ENTRY,
    NAME,
    NO_FILE,
    Directory,
    Manifest,
    encode_directory,
    encode_rows,
    folder_of,
    place_of,
    rows_bytes,
)
from streamdata.shards.index.manifest_file import (
    ROW_SIZES,
    Known,
    ManifestRows,
    Manifests,
    RowRun,
    open_manifest,
    stamps_for,
)
from streamdata.shards.listing import (
    JSONL_SUFFIXES,
    TAR_SUFFIXES,
    Listings,
    is_glob,
    is_sequential,
    sidecars_of,
    with_slash,
)
from streamdata.shards.tar.sidecar import SIDECAR_KEYS
from streamdata.shards.urls import as_listed, expand_home, find_shards

logger = logging.getLogger(__name__)


class Inventory(NamedTuple):
    """The files that a manifest will list, before any of them is read."""

    target: str  # the manifest
    root: str  # what the names are below, with its slash
    suffixes: tuple[str, ...]  # of which these are all below the root
    stamps: dict[str, FileStamp]  # by url, of shards and sidecars
    sidecars: dict[str, str]  # by tar


def take_stock(paths: Sequence[str], target: str | None = None, options: StorageOptions = NO_OPTIONS) -> Inventory:
    """Find the files that patterns stand for: tar or JSONL shards, and their sidecars.

    Args:
        paths: What a recipe's `path` may be.
        target: The manifest; by default in the folder that all shards have in common.
        options: Of the host that holds the shards.

    Raises:
        FileNotFoundError: The patterns match no shard.
        ShardError: Shards lie in no folder, or are the output of a command.
    """
    listings = Listings()
    urls, suffixes, known = _shards_of(paths, options, listings)
    folder = expand_home(paths[0])
    folder = Address(folder, options) if is_remote(folder) else folder
    is_whole = len(paths) == 1 and not is_glob(folder) and folder not in urls and listings.is_folder(folder)
    root = as_listed(with_slash(folder)) if is_whole else _common_folder(urls)
    candidates = {url: sidecars_of(url) for url in urls if url.endswith(TAR_SUFFIXES)}
    there = _those_there([o for url, others in candidates.items() if url not in known for o in others], known)
    sidecars = {url: next((other for other in others if other in there), "") for url, others in candidates.items()}
    sidecars = {url: sidecar for url, sidecar in sidecars.items() if sidecar}
    files = sorted({*urls, *sidecars.values()})  # each an address, if it takes one: a list's own urls are none
    found = stamps_for(files, Known(stamps=known))
    stamps = {url: found[url] for url in files}
    target = Address(target, options) if target and is_remote(target) else target
    return Inventory(
        target or beside(urls[0], root + NAME), beside(urls[0], root), suffixes if is_whole else (), stamps, sidecars
    )


def _shards_of(
    paths: Sequence[str], options: StorageOptions, listings: Listings
) -> tuple[list[str], tuple[str, ...], dict[str, FileStamp]]:
    """The shards of both kinds, the suffixes of the kinds that there are or might be, and what lists say of files."""
    urls: set[str] = set()
    suffixes: tuple[str, ...] = ()
    problems: list[Exception] = []
    for kind in (TAR_SUFFIXES, JSONL_SUFFIXES):
        try:
            found = find_shards(paths, kind, None, options, Manifests(is_used=False), listings)
            urls.update(url for url in found.urls if url.endswith(kind))
            suffixes += kind
        except FileNotFoundError as error:
            suffixes += kind
            problems.append(error)
        except ShardError:
            raise
        except ValueError as error:  # of this kind there are files by other names: the folder is listed for it
            logger.warning("%s", printable(str(error)))
            problems.append(error)
    if not urls:
        raise (
            problems[0]
            if problems
            else FileNotFoundError(f"index: expected shards, got none by {list(map(bare_url, paths))}")
        )
    return sorted(urls), suffixes, listings.stamps


def _common_folder(urls: Sequence[str]) -> str:
    pipes = [url for url in urls if is_pipe(url)]
    folders = sorted({folder_of(url) for url in urls})
    # The first and the last differ soonest; what they have in common ends with the name of a folder.
    root = folder_of(os.path.commonprefix([folders[0], folders[-1]]))  # noqa: RUF071  # of characters
    if pipes or (not root and any(map(is_remote, urls))):
        raise ShardError(
            f"index: expected shards in one folder, got {shown(pipes[0] if pipes else urls[0])} among {len(urls)}\n"
            "  Name one folder or pattern; what a command gives has no manifest."
        )
    return root


def _those_there(urls: Sequence[str], known: dict[str, FileStamp]) -> set[str]:
    """Find the files that there are, of these and of known ones; what shows of others meanwhile is known then.

    Remote folders are listed; where that is not possible, as of some web servers, each file is asked for.
    """
    if not any(map(is_remote, urls)):
        return {*known, *(url for url in urls if os.path.isfile(local_path(url)))}
    found: set[str] = set()
    for folder in sorted({folder_of(url) for url in urls}):
        try:
            found |= {bare_url(file.url) for file in list_once(beside(urls[0], folder), deep=False)}
        except (FileNotFoundError, DeniedError):
            known.update(stamps_there(url for url in urls if folder_of(url) == folder))
    return {*known, *(url for url in urls if url in found)}


_JOINS = tuple(map(sidecar_kind, (None, *SIDECAR_KEYS)))


class IndexProgress(NamedTuple):
    """How far indexing has come."""

    shards: int
    total_shards: int
    bytes: int
    total_bytes: int


Report = Callable[[IndexProgress], object]


class _Index(NamedTuple):
    """An index on its way into a manifest."""

    header: IndexHeader
    content: Hashable  # the same where the rows are
    rows: Callable[[], bytes]  # in chunks with their CRCs
    file: str
    sidecar: str


def make_manifest(
    stock: Inventory,
    report: Report = lambda _: None,
    num_processes: int | None = None,
    limits: ShardLimits = DEFAULT_LIMITS,
) -> str:
    """Index the shards that need it, and publish the manifest.

    Args:
        stock: The files.
        report: Called after each shard.
        num_processes: How many index local shards at the same time; by default one for each core.
        limits: What a record may be.

    Returns:
        The manifest's url.

    Raises:
        ShardError: A shard is damaged.
    """
    # By its real path: under another name it is the same, and what it says of other files must be kept.
    place = stock.target if is_remote(stock.target) else os.path.realpath(local_path(stock.target))
    with _saying_where_else():  # now, not when all is indexed
        folder = Path(place).parent
        if is_remote(stock.target):
            check_can_put(stock.target)
        elif os.path.isdir(place) or not os.access(folder, os.W_OK):
            got = "a folder" if os.path.isdir(place) else "no permission" if folder.is_dir() else "no such folder"
            raise ShardError(f"manifest '{stock.target}': expected to write it there, got {got}\n  Look at its folder.")
    with locked("manifest", place):
        wanted = [job._replace(limits=limits) for job in _jobs(stock)]
        old = _earlier(stock.target)
        whole, kept = _completed(stock, old, {(job.url, job.kind, job.sidecar) for job in wanted})
        jobs = [job for job in wanted if (job.url, job.kind) not in kept]
        if old is not None and not jobs:
            is_whole = bool(stock.suffixes) and set(stock.suffixes) == set(old[0].directory.suffixes)
            if is_whole and old[0].urls == sorted(stock.stamps) and not differences(stock, old[0]):
                report(IndexProgress(0, 0, 0, 0))
                return stock.target
        unbuilt = _build(jobs, report, num_processes)
        _publish(whole, [*kept.values(), *_built(jobs, unbuilt)])
        for job in jobs:
            forget_cached(job)
    return stock.target


def _jobs(stock: Inventory) -> list[IndexJob]:
    """The indexes of all shards, compressed ones counted; those of a tar's sidecar for all that its keys may be."""
    jobs = []
    for url, stamp in stock.stamps.items():
        assert url.endswith((*TAR_SUFFIXES, *JSONL_SUFFIXES)), f"no kind of index for {url}"
        if is_sequential(url):
            jobs.append(IndexJob("n-tar" if url.endswith(TAR_SUFFIXES) else "n-jsonl", url, stamp))
        elif url.endswith(".tar"):
            jobs.append(IndexJob("tar", url, stamp))
            if sidecar := stock.sidecars.get(url):
                jobs += [IndexJob(kind, url, stamp, sidecar, stock.stamps[sidecar]) for kind in _JOINS]
        elif not url.endswith(".meta.jsonl"):
            jobs.append(IndexJob("jsonl", url, stamp))
    return jobs


def _build(jobs: Sequence[IndexJob], report: Report, num_processes: int | None) -> set[IndexJob]:
    """Build what is missing; return what cannot be built though its shard could be read."""
    missing = [job for job in jobs if find(job) is None]
    sizes = {job.url: job.stamp.size for job in missing}
    done = IndexProgress(0, len(sizes), 0, sum(sizes.values()))
    report(done)

    def note(task: tuple[IndexJob, ...]) -> None:
        nonlocal done
        done = done._replace(shards=done.shards + 1, bytes=done.bytes + task[0].stamp.size)
        report(done)

    return build_missing(missing, num_processes=num_processes, is_kept_beside=False, report=note)


def _built(jobs: Sequence[IndexJob], unbuilt: set[IndexJob]) -> Iterator[_Index]:
    """The indexes of the jobs. Those of sidecars that join by no such key are left out; a source says why."""
    unjoined = []
    for job in jobs:
        if job in unbuilt and job.kind in _JOINS:
            unjoined += [job.sidecar] if job.kind == JOIN else []
            continue
        # What failed is tried once more, and raises what is wrong; what was built may have been deleted since.
        header = (find(job) or build(job, is_kept_beside=False)[0]).header
        # Equal rows are known by a hash: what the keys of a sidecar are makes no difference mostly.
        content = hashlib.blake2b(_rows_of(job), digest_size=16).digest() if job.sidecar else job.kind
        yield _Index(header, (job.url, content), partial(_rows_of, job), job.url, job.sidecar)
    if unjoined:
        logger.warning(
            "manifest: %d sidecars do not tell which lines are of which records, the first '%s'; the manifest does not "
            "say it either, and a source that asks for them says why",
            len(unjoined), one_line(unjoined[0]),
        )  # fmt: skip


def _rows_of(job: IndexJob) -> bytes:
    """The rows of an index file, as a manifest has them."""
    dtype = KINDS[job.kind].dtype
    try:
        index = open_index(job, is_kept_beside=False)
        (rows,) = index.runs([(0, index.header.num_records)])
    except IndexDamageError as damage:
        found = find(job)
        remedy = f"Delete '{found.path}', and run" if found else "Run"
        raise ShardError(f"index of '{job.url}': {damage}\n  {remedy} streamdata index again.") from damage
    return encode_rows(rows, dtype.itemsize)


def _earlier(target: str) -> tuple[Manifest, ManifestRows] | None:
    """The manifest that is there; one that is damaged is made anew."""
    try:
        found = open_manifest(target)
    except ShardError as damage:
        if isinstance(damage.__cause__, OSError):  # it may be as good as it was, and say more than this one would
            raise
        logger.warning("%s\n  It is made anew.", damage)
        return None
    # What was made for another place says of no file here which version it was.
    return None if found is None or found[0].is_copy else found


def _completed(
    stock: Inventory, old: tuple[Manifest, ManifestRows] | None, wanted: set[tuple[str, str, str]]
) -> tuple[Inventory, dict[tuple[str, str], _Index]]:
    """The files with those others that an earlier manifest has; and by url and kind what it has of indexes that stay.

    Files are complete where the manifest lists a whole folder of which only some were looked at: the others stay as
    they were. Of files that were looked at indexes stay that are wanted, and of the same versions.
    """
    if old is None:
        return stock, {}
    manifest, whole = old[0], stock
    if not stock.suffixes and manifest.root == stock.root:
        all_stamps = dict(sorted({**manifest.stamps, **stock.stamps}.items()))
        whole = stock._replace(stamps=all_stamps, suffixes=manifest.directory.suffixes)
    urls, stamps, kept = [*manifest.urls, ""], [*manifest.stamps.values(), NO_STAMP], {}
    for kind, entries in manifest.directory.indexes.items():
        for file, own, num_records, skipped, first_skipped, noted, offset in entries.tolist():
            joined = -1 if own == NO_FILE else own
            url, sidecar, known = urls[file], urls[joined], (stamps[file], stamps[joined])
            is_wanted = (url, kind, sidecar) in wanted or url not in stock.stamps
            if is_wanted and whole.stamps.get(url) == known[0] and whole.stamps.get(sidecar, known[1]) == known[1]:
                header = IndexHeader(kind, ROW_SIZES[kind], known, num_records, skipped, first_skipped, noted)
                read = partial(_kept_rows, old[1], RowRun(offset, num_records, 0, num_records), ROW_SIZES[kind])
                kept[url, kind] = _Index(header, (url, "kept", offset), read, url, sidecar)
    return whole, kept


def _kept_rows(rows: ManifestRows, run: RowRun, row_bytes: int) -> bytes:
    """The rows of an index in an earlier manifest."""
    (found,) = rows.read([run], row_bytes)
    return encode_rows(found, row_bytes)


def _publish(stock: Inventory, indexes: Sequence[_Index]) -> None:
    urls = sorted(stock.stamps)
    numbers = {url: number for number, url in enumerate(urls)}
    kinds: dict[str, list[_Index]] = {}
    for index in indexes:
        kinds.setdefault(index.header.kind, []).append(index)
    at, tables, in_order = 0, {}, []
    offsets: dict[Hashable, int] = {}
    for kind, members in sorted(kinds.items()):
        members.sort(key=lambda index: numbers[index.file])
        table = np.zeros(len(members), ENTRY)
        for row, index in enumerate(members):
            header = index.header
            if index.content not in offsets:
                offsets[index.content] = at
                at += rows_bytes(header.num_records, header.row_bytes)
                in_order.append(index)
            sidecar = numbers[index.sidecar] if index.sidecar else NO_FILE
            table[row] = (numbers[index.file], sidecar, *header[3:], offsets[index.content])
        tables[kind] = table
    sizes, versions = np.array([stock.stamps[url] for url in urls], np.int64).reshape(-1, 2).T
    tags = [version_of_stamp(url, stock.stamps[url]) for url in urls]  # what the host calls versions, if anything
    is_beside = folder_of(stock.target) == stock.root
    directory = Directory(
        place_of(stock.root), is_beside, stock.suffixes, [url[len(stock.root) :] for url in urls],
        tags if any(tags) else [], sizes, versions, tables,
    )  # fmt: skip
    _write(stock.target, encode_directory(directory, ROW_SIZES, at), (index.rows() for index in in_order))


def _write(target: str, head: bytes, rows: Iterable[bytes]) -> None:
    """Publish a manifest in one step."""

    def write(temporary: Path) -> None:
        with temporary.open("xb") as file:
            file.write(head)
            file.writelines(rows)

    if not is_remote(target):
        publish_made(Path(local_path(target)), write)
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        temporary = Path(folder, NAME)
        write(temporary)
        with _saying_where_else():
            put_once(target, temporary)


@contextmanager
def _saying_where_else() -> Iterator[None]:
    try:
        yield
    except ShardError as error:
        error.add_note("  To write the manifest to a disk: streamdata index PATH --output streamdata.manifest.")
        raise


def differences(stock: Inventory, manifest: Manifest) -> list[str]:
    """List how files differ from the manifest, a line for each.

    Args:
        stock: What is there.
        manifest: What should be.
    """
    said, lines = manifest.stamps, list[str]()
    for url in sorted({*said, *stock.stamps}):
        expected, got = said.get(url), stock.stamps.get(url)
        if got is None and stock.suffixes:
            lines.append(f"{url}: it is gone, or no shard any more")
        elif got is None or expected is None:
            lines += [] if got is None else [f"{url}: the manifest does not name it"]
        elif expected.size != got.size:
            lines.append(f"{url}: expected {expected.size} bytes, got {got.size}")
        elif expected.version != got.version and not manifest.is_copy:
            lines.append(f"{url}: it was modified, expected version {expected.version}, got {got.version}")
    return lines
