"""Making manifests: `patterns → inventory → indexes, many at a time → their list beside the shards, or where told`.

What an earlier manifest says of shards that are the same is taken from it. Indexes are built where they are to be, or
for a store in the cache, and then written there: a run that was killed goes on where it was.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamdata.errors import ShardError, one_line, printable, shown
from streamdata.io.file_cache import locked
from streamdata.io.remote.addresses import NO_OPTIONS, Address, StorageOptions, bare_url, beside
from streamdata.io.remote.once import check_can_put, put_once
from streamdata.io.storage import FileStamp, is_pipe, is_remote, local_path, stamps_there, version_of_stamp
from streamdata.recipe.limits import DEFAULT_LIMITS, ShardLimits
from streamdata.run.publish import publish
from streamdata.shards.index.index_file import IndexHeader, index_bytes
from streamdata.shards.index.indexing import (
    COUNT_KINDS,
    JOIN,
    KINDS,
    IndexJob,
    build,
    build_missing,
    find,
    folder_of,
    index_url,
    sidecar_kind,
)
from streamdata.shards.index.manifest import (
    ENTRY,
    NAME,
    Known,
    Manifest,
    Manifests,
    ShardList,
    encode_list,
    indexes_root,
    open_manifest,
    place_of,
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
_MAX_REQUESTS = 16  # of indexes that are written at the same time


class Inventory(NamedTuple):
    """The files that a manifest will list, before any of them is read."""

    target: str  # the manifest
    root: str  # what the names are below, with its slash
    suffixes: tuple[str, ...]  # of which these are all below the root
    stamps: dict[str, FileStamp]  # by url, of shards and sidecars
    sidecars: dict[str, str]  # by tar
    listed: Mapping[str, int]  # sizes of all files that a store lists below the root; empty if it was not asked

    @property
    def is_beside(self) -> bool:
        """Whether the manifest is in the folder of the shards."""
        return folder_of(self.target) == self.root

    def place(self, url: str, kind: str) -> str:
        """Where the index of a shard is to be."""
        return index_url(url, kind, (self.root, indexes_root(self.target, self.root, is_beside=self.is_beside)))


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
    if is_whole:
        root = as_listed(with_slash(folder))
    else:
        # The first and the last folder differ soonest; what they have in common ends with the name of a folder.
        folders = sorted({folder_of(url) for url in urls})
        root = folder_of(os.path.commonprefix([folders[0], folders[-1]]))  # noqa: RUF071  # of characters
        pipes = [url for url in urls if is_pipe(url)]
        if pipes or (not root and any(map(is_remote, urls))):
            raise ShardError(
                f"index: expected shards in one folder, got {shown(pipes[0] if pipes else urls[0])} among {len(urls)}\n"
                "  Name one folder or pattern; what a command gives has no manifest."
            )
    candidates = {url: sidecars_of(url) for url in urls if url.endswith(TAR_SUFFIXES)}
    there = {**known, **stamps_there(o for url, own in candidates.items() if url not in known for o in own)}
    sidecars = {url: next((other for other in others if other in there), "") for url, others in candidates.items()}
    sidecars = {url: sidecar for url, sidecar in sidecars.items() if sidecar}
    files = sorted({*urls, *sidecars.values()})  # each an address, if it takes one: a list's own urls are none
    found = stamps_for(files, Known(stamps=there))
    stamps = {url: found[url] for url in files}
    target = Address(target, options) if target and is_remote(target) else target
    target = target or beside(urls[0], root + NAME)
    suffixes, listed = (suffixes, listings.sizes()) if is_whole else ((), {})
    return Inventory(target, beside(urls[0], root), suffixes, stamps, sidecars, listed)


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
        problems.append(FileNotFoundError(f"index: expected shards, got none by {list(map(bare_url, paths))}"))
        raise problems[0]
    return sorted(urls), suffixes, listings.stamps


_JOINS = tuple(map(sidecar_kind, (None, *SIDECAR_KEYS)))


class IndexProgress(NamedTuple):
    """How far indexing has come."""

    shards: int
    total_shards: int
    bytes: int
    total_bytes: int


Report = Callable[[IndexProgress], object]


class _Listed(NamedTuple):
    """An index as a manifest will list it: counts as in its header, and the CRC32 of that."""

    job: IndexJob
    num_records: int
    skipped: int
    first_skipped: int
    noted: int
    check: int


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
        old = _earlier(stock)
        wanted = [job._replace(limits=limits) for job in _jobs(stock)]
        kept = {} if old is None else _kept(stock, old, wanted)
        jobs = [job for job in wanted if job not in kept]
        unbuilt = _build(jobs, report, num_processes)
        built = list(_built(jobs, unbuilt))
        _put(stock, [one.job for one in built])
        _publish(stock, [*kept.values(), *built], old)
    return stock.target


def _jobs(stock: Inventory) -> list[IndexJob]:
    """The indexes of all shards, compressed ones counted; those of a tar's sidecar for all that its keys may be."""
    jobs = []

    def add(kind: str, url: str, sidecar: str = "") -> None:
        # What is for a store is built in the cache.
        place = "" if is_remote(stock.target) else stock.place(url, kind)
        joined = (sidecar, stock.stamps[sidecar]) if sidecar else ()
        jobs.append(IndexJob(kind, url, stock.stamps[url], *joined)._replace(place=place))

    for url in stock.stamps:
        assert url.endswith((*TAR_SUFFIXES, *JSONL_SUFFIXES)), f"no kind of index for {url}"
        if is_sequential(url):
            add("n-tar" if url.endswith(TAR_SUFFIXES) else "n-jsonl", url)
        elif url.endswith(".tar"):
            add("tar", url)
            for kind in _JOINS if url in stock.sidecars else ():
                add(kind, url, stock.sidecars[url])
        elif not url.endswith(".meta.jsonl"):
            add("jsonl", url)
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

    return build_missing(missing, num_processes=num_processes, report=note)


def _built(jobs: Sequence[IndexJob], unbuilt: set[IndexJob]) -> Iterator[_Listed]:
    """The indexes of the jobs. Those of sidecars that join by no such key are left out; a source says why."""
    unjoined = []
    for job in jobs:
        if job in unbuilt and job.kind in _JOINS:
            unjoined += [job.sidecar] if job.kind == JOIN else []
            continue
        # What failed is tried once more, and raises what is wrong; what was built may have been deleted since.
        header: IndexHeader = (find(job) or build(job)[0]).header
        yield _Listed(job, *header[3:], header.check)
    if unjoined:
        logger.warning(
            "manifest: %d sidecars do not tell which lines are of which records, the first '%s'; the manifest does not "
            "say it either, and a source that asks for them says why",
            len(unjoined), one_line(unjoined[0]),
        )  # fmt: skip


def _put(stock: Inventory, jobs: Sequence[IndexJob]) -> None:
    """Write indexes that were built or found elsewhere to where they are to be. A count is in the manifest alone."""

    def put(job: IndexJob) -> None:
        place, found = stock.place(job.url, job.kind), find(job) or build(job)[0]
        if is_remote(place):
            put_once(place, Path(found.path))
        elif (path := os.path.abspath(local_path(place))) != found.path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            publish(Path(path), [Path(found.path).read_bytes()], is_checked=True)

    with _saying_where_else(), ThreadPoolExecutor(_MAX_REQUESTS) as threads:
        for _ in threads.map(put, [job for job in jobs if job.kind not in COUNT_KINDS]):
            pass


def _earlier(stock: Inventory) -> Manifest | None:
    """The manifest that is there; one that is damaged is made anew.

    Raises:
        ShardError: It lists all of the folder, of which only some shards are to be indexed.
    """
    try:
        found = open_manifest(stock.target)
    except ShardError as damage:
        if isinstance(damage.__cause__, OSError):  # it may be as good as it was, and say more than this one would
            raise
        logger.warning("%s\n  It is made anew.", damage)
        return None
    if found is not None and found.said.suffixes and not stock.suffixes and found.root == stock.root:
        raise ShardError(
            f"manifest '{stock.target}': it lists all shards of its folder, expected to index all of them, got "
            f"{len(stock.stamps)} files\n  Run streamdata index {one_line(stock.root)}, which reads only what is new."
        )
    # What was made for another place says of no file here which version it was.
    return None if found is None or found.is_copy else found


def _kept(stock: Inventory, old: Manifest, wanted: Sequence[IndexJob]) -> dict[IndexJob, _Listed]:
    """Find the indexes that an earlier manifest lists, of the same versions, where they are still there."""
    said = {one.job[:5]: one for one in _listed_in(old)}
    found = ((job, said[job[:5]]) for job in wanted if job[:5] in said)
    return {job: one for job, one in found if _is_there(stock, one)}


def _listed_in(manifest: Manifest) -> Iterator[_Listed]:
    """The indexes that a manifest lists."""
    urls, stamps = manifest.urls, list(manifest.stamps.values())
    for kind, entries in manifest.said.indexes.items():
        for file, sidecar, *counts in entries.tolist():
            joined = (urls[sidecar], stamps[sidecar]) if sidecar >= 0 else ()
            yield _Listed(IndexJob(kind, urls[file], stamps[file], *joined), *counts)


def _is_there(stock: Inventory, one: _Listed) -> bool:
    """Whether an index is where it is listed, as far as that can be told without reading it."""
    place = stock.place(one.job.url, one.job.kind)
    size = index_bytes(one.num_records, KINDS[one.job.kind].dtype.itemsize)
    if one.job.kind in COUNT_KINDS or (is_remote(place) and not (stock.listed and stock.is_beside)):
        return True
    if is_remote(place):
        return stock.listed.get(place) == size
    path = local_path(place)
    return os.path.isfile(path) and os.path.getsize(path) == size


def _publish(stock: Inventory, indexes: Sequence[_Listed], old: Manifest | None) -> None:
    urls = sorted(stock.stamps)
    numbers = {url: number for number, url in enumerate(urls)} | {"": -1}
    kinds: dict[str, list[tuple[int, ...]]] = {}
    for job, *counts in indexes:
        kinds.setdefault(job.kind, []).append((numbers[job.url], numbers[job.sidecar], *counts))
    sizes, versions = np.array([stock.stamps[url] for url in urls], np.int64).reshape(-1, 2).T
    tags = [version_of_stamp(url, stock.stamps[url]) for url in urls]  # what the host calls versions, if anything
    said = ShardList(
        place_of(stock.root), stock.is_beside, stock.suffixes,
        [url[len(stock.root) :] for url in urls], tags if any(tags) else [], sizes, versions,
        {kind: np.array(sorted(rows), ENTRY) for kind, rows in sorted(kinds.items())},
    )  # fmt: skip
    data = encode_list(said)
    if old is not None and encode_list(old.said) == data:
        return
    if not is_remote(stock.target):
        publish(Path(local_path(stock.target)), [data])
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder, _saying_where_else():
        Path(folder, NAME).write_bytes(data)
        put_once(stock.target, Path(folder, NAME))


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
    missing = (one.job for one in _listed_in(manifest) if not _is_there(stock, one))
    return lines + [f"{job.url}: its index '{job.kind}' is missing, or of another size" for job in missing]
