"""The shards that a recipe means: `braces, globs, directories, lists → sorted urls`."""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from braceexpand import braceexpand

from streamdata.errors import one_line, shown, without_secrets
from streamdata.io.remote.addresses import NO_OPTIONS, Address, StorageOptions, bare_url, beside
from streamdata.io.remote.hosts import canonical_url, kind_of
from streamdata.io.remote.requests import DeadHostError, DeniedError
from streamdata.io.storage import base_name, is_pipe, is_remote, local_path
from streamdata.io.streams import check_allowed
from streamdata.shards.index.indexing import folder_of
from streamdata.shards.index.manifest import SUFFIX, Known, Manifest, Manifests
from streamdata.shards.listing import (
    JSON_SUFFIXES,
    JSONL_SUFFIXES,
    MAX_PATHS,
    META_SUFFIX,
    TAR_SUFFIXES,
    Listings,
    check_braces,
    chosen,
    is_glob,
    split_glob,
    with_slash,
)
from streamdata.shards.parquet.file import ARROW_SUFFIX, saved_files

logger = logging.getLogger(__name__)
_COPIES = re.compile(r"(.+)\*([0-9]{1,9})")
_COMPRESSION = r"\.(7z|br|bz2|gz|gzip|lz4|lzma|sz|xz|z|zip|zst|zstd)"
_SPELLINGS = {
    ".tar": re.compile(rf"\.(tar({_COMPRESSION})?|taz|tbz|tbz2|tgz|tlz|txz|tzst)\Z", re.IGNORECASE),
    ".jsonl": re.compile(rf"\.((jsonl|jsonlines|ldjson|ndjson)({_COMPRESSION})?|json{_COMPRESSION})\Z", re.IGNORECASE),
    ".parquet": re.compile(rf"\.(parquet|parq|pq)({_COMPRESSION})?\Z", re.IGNORECASE),
}
"""Names of files of the same kind, by a suffix that a source takes. A lone .json may be anything."""
_NOTES = (META_SUFFIX, "dataset_info.json", "dataset_infos.json")
"""How files end that stand beside shards: sidecars, and what Hugging Face says of all files of a folder."""
_MAX_NAMED = 10
_MAX_FOLDERS = 50


class FoundShards(NamedTuple):
    """The shards that a recipe's patterns stand for."""

    urls: list[str]
    known: Known


class _Found(NamedTuple):
    """The shards of one pattern."""

    pattern: str
    copies: int
    urls: list[str]


def expand(
    path: str | Sequence[str],
    suffixes: tuple[str, ...],
    include_dirs: str | Sequence[str] | None = None,
    options: StorageOptions = NO_OPTIONS,
) -> list[str]:
    """Find the urls of all shards as `find_shards` does, ignoring manifests."""
    return find_shards(path, suffixes, include_dirs, options, Manifests(is_used=False)).urls


def find_shards(
    path: str | Sequence[str],
    suffixes: tuple[str, ...],
    include_dirs: str | Sequence[str] | None = None,
    options: StorageOptions = NO_OPTIONS,
    manifests: Manifests | None = None,
    listings: Listings | None = None,
) -> FoundShards:
    """Find the sorted urls of all shards, spelled as in the recipe, and the manifests that list some of them.

    Remote ones are each an `Address`, where it takes more than its text to reach them.

    Args:
        path: Brace expressions, globs (see `listing`) and directories with all that is below them: a list, or one text
            with commas between them (outside braces). `~` is the home directory. Names that are spelt out need no
            suffix. A folder with a manifest is not listed: the manifest is its list. One may be named itself, too.
        suffixes: Suffixes of shards, for globs and directories; of `.arrow` only what `save_to_disk` wrote, in its
            folder. Sidecars (.meta.jsonl), dataset_info.json and hidden files are left out.
        include_dirs: More directories, each with an optional '*n' at its end: n copies of each shard per epoch.
        options: Of the hosts that hold them.
        manifests: Where the manifests are looked up.
        listings: What was listed already, and by which folders are.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A shard is named twice, a pattern is empty, or finds shards by names that the source does not take,
            or a pipe is named where the environment does not allow commands.
        ManifestError: A manifest is damaged.
    """
    manifests, listings = manifests or Manifests(options), listings or Listings()
    search, found = _Search(suffixes, options, manifests, listings), list[_Found]()
    patterns = chain(zip(_listed(path), repeat(False)), zip(_listed(include_dirs or ()), repeat(True)))
    for pattern, is_folder in patterns:
        try:
            found.append(search.copies_of(pattern) if is_folder else search.expand_pattern(pattern))
        except (DeadHostError, DeniedError) as error:  # it names a manifest or a list of ours
            raise type(error)(f"shards: pattern '{bare_url(pattern)}': {error}") from error
    urls = found[0].urls if len(found) == 1 and found[0].urls is search.whole else _joined(found)
    if not urls:
        raise ValueError("shards: expected a path, got none\n  Name at least one shard, directory or pattern.")
    if logger.isEnabledFor(logging.INFO):  # there may be 100,000
        counts = Counter("pipes" if is_pipe(url) else url.rpartition("/")[0] or "." for url in urls)
        named = [f"{folder} {count}" for folder, count in sorted(counts.items())[:_MAX_FOLDERS]]
        rest = ", …" if len(counts) > _MAX_FOLDERS else ""
        logger.info("shards: %d, by folder (%d): %s", len(urls), len(counts), one_line(", ".join(named) + rest))
    return FoundShards(urls, Known(tuple(search.manifests.used.values()), search.listings.stamps))


def _joined(patterns: list[_Found]) -> list[str]:
    """The shards of all patterns, sorted."""
    found: dict[str, tuple[str, str]] = {}  # canonical url → url, pattern
    copies = Counter[str]()
    for pattern, num_copies, urls in patterns:
        for url in urls:
            if is_pipe(url) and not is_pipe(pattern):
                raise ValueError(
                    f"shards: expected files, got '{without_secrets(url)}' by '{without_secrets(pattern)}', whose name "
                    "reads as a command\n  Rename the file, or begin the pattern with './'."
                )
            canonical = url  # in the one way that all its spellings have in common
            if not is_pipe(url):
                canonical = canonical_url(url) if is_remote(url) else os.path.abspath(local_path(url))
            if canonical in found:
                raise ValueError(
                    without_secrets(
                        f"shards: expected '{url}' once, got it by '{found[canonical][1]}' and by '{pattern}'\n"
                        "  Drop one of them; for several copies per epoch, use include_dirs with '*n'.\n"
                        "  Urls that differ in their query alone are one shard: it may be a signature."
                    )
                )
            found[canonical] = url, pattern
            copies[url] = num_copies
    if copies.total() > max(MAX_PATHS, len(copies)):
        raise ValueError(
            f"include_dirs: expected at most {MAX_PATHS} shards with all their copies, got {copies.total()}\n"
            "  Write a smaller number after '*'."
        )
    return sorted(copies.elements())


def expand_home(url: str) -> str:
    """Expand `~` or `~user` at the start of a local path; other urls stay as they are."""
    path = local_path(url)
    return url[: len(url) - len(path)] + os.path.expanduser(path) if path.startswith("~") else url


def _listed(path: str | Sequence[str]) -> list[str]:
    if isinstance(path, Mapping):  # its keys would be taken for patterns
        raise ValueError(
            f"shards: expected the text of a pattern, or a list of them, got {shown(path)}\n  Write a list."
        )
    if not isinstance(path, str):
        patterns = list(path)
    elif not path or is_pipe(path) or (not is_remote(path) and os.path.exists(local_path(expand_home(path)))):
        patterns = [path] if path else []
    else:
        patterns = [pattern.strip() for pattern in split_commas(path)]
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise ValueError(f"shards: expected the texts of patterns, got {shown(pattern)} among them\n  Remove it.")
    return list(map(expand_home, patterns))


def split_commas(text: str) -> list[str]:
    """Split `text` at commas outside braces."""
    parts, depth = [""], 0
    for letter in text:
        depth = max(0, depth + (letter == "{") - (letter == "}"))
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class _Search:
    """Finds what patterns stand for, for a source that takes some suffixes."""

    def __init__(
        self, suffixes: tuple[str, ...], options: StorageOptions, manifests: Manifests, listings: Listings
    ) -> None:
        self._takes_saved = ARROW_SUFFIX in suffixes
        self.suffixes = tuple(suffix for suffix in suffixes if suffix != ARROW_SUFFIX)
        self.manifests, self.listings, self._options = manifests, listings, options
        self.whole: list[str] | None = None
        """The shards of the last folder that a manifest listed."""

    def expand_pattern(self, pattern: str) -> _Found:
        """Find the shards of a pattern with braces, globs, folders and names."""
        if is_pipe(pattern):
            check_allowed(pattern)  # it is asked when the pipe is opened; here the recipe's line is known
        is_literal = not is_remote(pattern) and os.path.exists(local_path(pattern))  # a name that itself has braces
        pieces = [pattern]
        if not is_literal and ("{" in pattern or "}" in pattern):  # there may be 100,000 without
            check_braces(pattern)
            pieces = list(braceexpand(pattern))
        if is_pipe(pattern):
            return _Found(pattern, 1, pieces)
        top, shown = folder_of(bare_url(expand_home(pattern.partition("{")[0]))), bare_url(pattern)
        found = [self._expand_piece(shown, self.reached(expand_home(piece)), top) for piece in pieces]
        return _Found(shown, 1, found[0] if len(found) == 1 else [url for urls in found for url in urls])

    def copies_of(self, pattern: str) -> _Found:
        """The shards of a folder, repeated n times if `*n` follows it."""
        match = _COPIES.fullmatch(pattern)
        folder, count = (match[1], int(match[2])) if match else (pattern, 1)
        if not count:
            raise ValueError(
                without_secrets(f"include_dirs: expected at least one copy, got '{pattern}'\n  Drop it, or write *1.")
            )
        return _Found(bare_url(pattern), count, self.directory(bare_url(pattern), self.reached(folder)))

    def reached(self, url: str) -> str:
        """Attach storage options to a remote url."""
        if not is_remote(url):
            return url
        kind_of(url)  # some are of other tools
        return Address(url, self._options)

    def _expand_piece(self, pattern: str, piece: str, top: str) -> list[str]:
        """The urls of one glob, directory or file."""
        if is_glob(piece):
            root, parts = split_glob(piece)
            # What is hidden is in no manifest.
            manifest = None if any(part.startswith(".") for part in parts) else self._whole(root)
            if manifest is None:
                files = self.listings.files(root, parts)
            else:
                self.manifests.use(manifest)
                files = chosen(manifest.root, parts, manifest.urls)
            suffixes = self.suffixes + tuple(end for end in _by_glob(self.suffixes) if piece.endswith(end))
            if shards := _shards_of(pattern, files, suffixes):
                return shards
            got = f"{len(files)} files that are not shards" if files else "nothing"
            raise _matches_nothing(pattern, piece, f"shards ({', '.join(self.suffixes)})", got)
        if piece.endswith(SUFFIX) and (manifest := self.manifests.at(piece)):
            return self._shards_in(manifest)
        if piece.endswith(self.suffixes) and (named := self.manifests.naming(piece, top)):
            self.manifests.use(named)
            return [piece]
        is_named = is_remote(piece) and piece.endswith((*self.suffixes, *TAR_SUFFIXES, *JSONL_SUFFIXES))
        if not is_named and (self._whole(piece) or self.listings.is_folder(piece)):
            return self.directory(pattern, piece)
        if is_remote(piece) or os.path.isfile(local_path(piece)):
            return [piece]
        got = "something else" if os.path.exists(local_path(piece)) else "none"
        raise _matches_nothing(pattern, piece, "a file or directory", got)

    def directory(self, pattern: str, folder: str) -> list[str]:
        """The shards of a folder: from its manifest if it has one, else from a listing."""
        if self._takes_saved and (saved := saved_files(folder)):
            return saved
        manifest = self._whole(folder)
        files = [] if manifest else self.listings.files(with_slash(folder))
        found = self._shards_in(manifest) if manifest else _shards_of(pattern, files, self.suffixes)
        if not found:
            by_glob = sum(file.endswith(_by_glob(self.suffixes)) for file in files)
            got = f"{by_glob} that may be something else, which a glob such as '*.json' takes" if by_glob else "none"
            raise _matches_nothing(pattern, folder, f"a directory of shards ({', '.join(self.suffixes)})", got)
        return found

    def _whole(self, folder: str) -> Manifest | None:
        """The manifest that lists all shards below a folder."""
        return self.manifests.whole(as_listed(with_slash(folder)), self.suffixes)

    def _shards_in(self, manifest: Manifest) -> list[str]:
        self.manifests.use(manifest)
        # No more is asked of each name: there may be 100,000, and they were looked at when the manifest was made.
        self.whole = manifest.shards(self.suffixes, META_SUFFIX)
        return self.whole


def as_listed(folder: str) -> str:
    """Spell a folder as the urls of its listing begin."""
    if not is_remote(folder):
        return folder
    return beside(folder, canonical_url(folder).rstrip("/") + "/")


def _matches_nothing(pattern: str, piece: str, expected: str, got: str) -> FileNotFoundError:
    where = f" (its part '{piece}')" if piece != pattern else ""
    return FileNotFoundError(
        without_secrets(f"shards: pattern '{pattern}'{where}: expected {expected}, got {got}")
        + "\n  Check the path, and what is there."
    )


def _shards_of(pattern: str, files: list[str], suffixes: tuple[str, ...]) -> list[str]:
    """Filter the files that are shards.

    Raises:
        ValueError: There are more of the same kind, by names that the source does not take.
    """
    shards, others = list[str](), list[str]()
    for url in files:
        name = base_name(url)
        if name.startswith(".") or url.endswith(_NOTES):
            continue
        if url.endswith(suffixes):
            shards.append(url)
        elif ".meta." not in name.lower() and any(
            _SPELLINGS[end].search(name) for end in suffixes if end in _SPELLINGS
        ):
            others.append(url)
    if others:
        named = ", ".join(repr(url) for url in others[:_MAX_NAMED]) + (", …" if len(others) > _MAX_NAMED else "")
        raise ValueError(
            f"shards: pattern '{without_secrets(pattern)}': expected shards that end in "
            f"{' or '.join(suffixes)}, got {len(shards)} of them, and {len(others)} of the same "
            f"kind by other names: {named}\n"
            f"  Rename or convert them; to leave them out, write a glob such as '**/*{suffixes[0]}'."
        )
    return shards


def _by_glob(suffixes: tuple[str, ...]) -> tuple[str, ...]:
    """Suffixes of what a source of these takes where a glob ends so."""
    return JSON_SUFFIXES if set(JSONL_SUFFIXES) <= set(suffixes) else ()
