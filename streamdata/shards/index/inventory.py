"""What a manifest is to list: `patterns → shards, their sidecars, their stamps; where the manifest lies`."""

import logging
import os
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from streamdata.errors import ShardError, printable, shown
from streamdata.io.remote import NO_OPTIONS, Address, DeniedError, StorageOptions, bare_url, beside, list_once
from streamdata.io.stamps import stamps_of, stamps_there
from streamdata.io.storage import FileStamp, is_pipe, is_remote, local_path
from streamdata.io.suffixes import JSONL_SUFFIXES, TAR_SUFFIXES, sidecars_of
from streamdata.shards.index.manifest import NAME, folder_of
from streamdata.shards.index.manifest_file import Manifests
from streamdata.shards.listing import Listings, is_glob
from streamdata.shards.urls import as_listed, expand_home, find_shards

logger = logging.getLogger(__name__)


class Inventory(NamedTuple):
    """What is there: the files of a manifest, before any of them is read."""

    target: str  # the manifest
    root: str  # what the names are below, with its slash
    suffixes: tuple[str, ...]  # of which these are all below the root
    stamps: dict[str, FileStamp]  # by url, of shards and sidecars
    sidecars: dict[str, str]  # by tar

    @property
    def is_beside(self) -> bool:
        """Whether the manifest lies in the folder of the shards."""
        return folder_of(self.target) == self.root


def take_stock(paths: Sequence[str], target: str | None = None, options: StorageOptions = NO_OPTIONS) -> Inventory:
    """What patterns stand for: their shards, whether of tar or JSONL, and these shards' sidecars.

    Args:
        paths: What a recipe's `path` may be.
        target: The manifest; by default in the folder that all shards have in common.
        options: Of the store that holds the shards.

    Raises:
        FileNotFoundError: There is no shard.
        ShardError: Shards lie in no folder, or are the output of a command.
    """
    listings = Listings()
    urls, suffixes, known = _shards_of(paths, options, listings)
    folder = expand_home(paths[0])
    folder = Address(folder, options) if is_remote(folder) else folder
    is_whole = len(paths) == 1 and not is_glob(folder) and folder not in urls and listings.is_folder(folder)
    root = as_listed(folder if folder.endswith("/") else beside(folder, f"{folder}/")) if is_whole else ""
    root = root or _common_folder(urls)
    candidates = {url: sidecars_of(url) for url in urls if url.endswith(TAR_SUFFIXES)}
    there = _those_there([o for url, others in candidates.items() if url not in known for o in others], known)
    sidecars = {url: next((other for other in others if other in there), "") for url, others in candidates.items()}
    sidecars = {url: sidecar for url, sidecar in sidecars.items() if sidecar}
    files = sorted({*urls, *sidecars.values()})  # each an address, if it takes one: a list's own urls are none
    unknown = [url for url in files if url not in known]
    asked = dict(zip(unknown, stamps_of(unknown), strict=True))
    stamps = {url: known[url] if url in known else asked[url] for url in files}
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
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(folders[0], folders[-1], strict=False))))
    root = folder_of(folders[0][:same])
    if pipes or (not root and any(map(is_remote, urls))):
        raise ShardError(
            f"index: expected shards in one folder, got {shown(pipes[0] if pipes else urls[0])} among {len(urls)}\n"
            "  Name one folder or pattern; what a command gives has no manifest."
        )
    return root


def _those_there(urls: Sequence[str], known: dict[str, FileStamp]) -> set[str]:
    """Which files there are, of these and of those that are known; what shows of others meanwhile is known then.

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
