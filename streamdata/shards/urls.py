"""Which shards a recipe means: `braces, globs, directories, lists → sorted urls`."""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from braceexpand import braceexpand

from streamdata.remote import NO_OPTIONS, Address, StorageOptions, bare_url, canonical_url, kind_of
from streamdata.shards.listing import files_in, files_matching, is_folder, is_glob
from streamdata.shards.pipes import check_allowed
from streamdata.shards.storage import base_name, is_pipe, is_remote, local_path

logger = logging.getLogger(__name__)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_COMPRESSED = (".gz", ".tgz", ".zst")
_SIDECAR = ".meta.jsonl"
_COPIES = re.compile(r"(.+)\*([0-9]+)")
_COMPRESSION = r"\.(7z|br|bz2|gz|gzip|lz4|lzma|sz|xz|z|zip|zst|zstd)"
_SPELLINGS = {
    ".tar": re.compile(rf"\.(tar({_COMPRESSION})?|taz|tbz|tbz2|tgz|tlz|txz|tzst)\Z", re.IGNORECASE),
    ".jsonl": re.compile(rf"\.((jsonl|jsonlines|ldjson|ndjson)({_COMPRESSION})?|json{_COMPRESSION})\Z", re.IGNORECASE),
    ".parquet": re.compile(rf"\.(parquet|parq|pq)({_COMPRESSION})?\Z", re.IGNORECASE),
}
"""By a suffix that a source takes: how files of the same kind are called. A lone .json may be anything."""
_MAX_NAMED = 10
_MAX_FOLDERS = 50


def is_sequential(url: str) -> bool:
    """Whether the shard can only be read from its start: it is compressed or piped."""
    return is_pipe(url) or url.endswith(_COMPRESSED)


def expand(
    path: str | Sequence[str],
    suffixes: tuple[str, ...],
    include_dirs: str | Sequence[str] | None = None,
    options: StorageOptions = NO_OPTIONS,
) -> list[str]:
    """The urls of all shards, sorted, as the recipe spells them; those of a store elsewhere are each an `Address`.

    Args:
        path: Brace expressions, globs (see `listing`) and directories with all that is below them: a list, or one text
            with commas between them (outside braces). `~` is the home directory. Names that are spelt out need no
            suffix.
        suffixes: Suffixes of shards, for globs and directories. Sidecars (.meta.jsonl) and hidden files are left out.
        include_dirs: More directories, each with an optional '*n' at its end: n copies of each shard per epoch.
        options: Of the stores that hold them.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A shard is named twice, a pattern is empty, or finds shards by names that the source does not take,
            or a pipe is named where the environment does not allow commands.
    """
    found: dict[str, tuple[str, str]] = {}  # canonical url → url, pattern
    copies: dict[str, int] = {}
    for pattern, count, urls in _patterns(path, suffixes, include_dirs, options):
        for url in urls:
            if is_pipe(url) and not is_pipe(pattern):
                raise ValueError(
                    f"shards: expected files, got '{url}' by '{pattern}', whose name reads as a command\n"
                    "  Rename the file, or begin the pattern with './'."
                )
            canonical = _canonical(url)
            if canonical in found:
                raise ValueError(
                    f"shards: expected '{url}' once, got it by '{found[canonical][1]}' and by '{pattern}'\n"
                    "  Drop one of them; for several copies per epoch, use include_dirs with '*n'."
                )
            found[canonical] = url, pattern
            copies[url] = count
    if not found:
        raise ValueError("shards: expected a path, got none\n  Name at least one shard, directory or pattern.")
    urls = sorted(url for url, _ in found.values() for _ in range(copies[url]))
    _log_folders(urls)
    return urls


def expand_home(url: str) -> str:
    """A local path that begins with `~` or `~user`, from the root; others as they are."""
    path = local_path(url)
    return url[: len(url) - len(path)] + os.path.expanduser(path) if path.startswith("~") else url


def _log_folders(urls: list[str]) -> None:
    counts = Counter("pipes" if is_pipe(url) else url.rpartition("/")[0] or "." for url in urls)
    named = [f"{folder} {count}" for folder, count in sorted(counts.items())[:_MAX_FOLDERS]]
    rest = ", …" if len(counts) > _MAX_FOLDERS else ""
    logger.info("shards: %d, by folder (%d): %s", len(urls), len(counts), ", ".join(named) + rest)


def _patterns(
    path: str | Sequence[str],
    suffixes: tuple[str, ...],
    include_dirs: str | Sequence[str] | None,
    options: StorageOptions,
) -> Iterator[tuple[str, int, list[str]]]:
    """Each pattern, how many copies it asks for, and its urls."""
    for pattern in _listed(path):
        yield bare_url(pattern), 1, _expand_pattern(pattern, suffixes, options)
    for pattern in _listed(include_dirs or ()):
        match = _COPIES.fullmatch(pattern)
        folder, count = (match[1], int(match[2])) if match else (pattern, 1)
        if not count:
            raise ValueError(f"include_dirs: expected at least one copy, got '{pattern}'\n  Drop it, or write *1.")
        yield bare_url(pattern), count, _directory(bare_url(pattern), _reached(folder, options), suffixes)


def _listed(path: str | Sequence[str]) -> list[str]:
    if isinstance(path, Mapping):  # its keys would be taken for patterns
        raise ValueError(f"shards: expected the text of a pattern, or a list of them, got {path!r}\n  Write a list.")
    if not isinstance(path, str):
        patterns = list(path)
    elif not path or is_pipe(path) or (not is_remote(path) and os.path.exists(local_path(expand_home(path)))):
        patterns = [path] if path else []
    else:
        patterns = [pattern.strip() for pattern in split_commas(path)]
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise ValueError(f"shards: expected the text of a pattern, got {pattern!r} in {path!r}\n  Remove it.")
    return [expand_home(pattern) for pattern in patterns]


def split_commas(text: str) -> list[str]:
    """The parts of `text` between commas that are not within braces."""
    parts, depth = [""], 0
    for letter in text:
        depth = max(0, depth + (letter == "{") - (letter == "}"))
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _reached(url: str, options: StorageOptions) -> str:
    if not is_remote(url):
        return url
    kind_of(url)  # some are of other tools
    return Address(url, options)


def _expand_pattern(pattern: str, suffixes: tuple[str, ...], options: StorageOptions) -> list[str]:
    if is_pipe(pattern):
        check_allowed(pattern)  # it is asked when the pipe is opened; here the recipe's line is known
        return list(braceexpand(pattern))
    is_literal = not is_remote(pattern) and os.path.exists(local_path(pattern))  # a name that itself has braces
    pieces = [pattern] if is_literal else map(expand_home, braceexpand(pattern))
    return [url for piece in pieces for url in _expand_piece(bare_url(pattern), _reached(piece, options), suffixes)]


def _expand_piece(pattern: str, piece: str, suffixes: tuple[str, ...]) -> list[str]:
    """The urls of one glob, directory or file."""
    if is_glob(piece):
        files = files_matching(piece)
        if shards := _shards_of(pattern, files, suffixes):
            return shards
        got = f"{len(files)} files that are not shards" if files else "nothing"
        raise _matches_nothing(pattern, piece, f"shards ({', '.join(suffixes)})", got)
    if is_remote(piece) and piece.endswith(suffixes):  # to ask what it is would be a request for each
        return [piece]
    if is_folder(piece):
        return _directory(pattern, piece, suffixes)
    if is_remote(piece) or Path(local_path(piece)).is_file():
        return [piece]
    raise _matches_nothing(pattern, piece, "a file or directory", "none")


def _directory(pattern: str, folder: str, suffixes: tuple[str, ...]) -> list[str]:
    found = _shards_of(pattern, files_in(folder), suffixes)
    if not found:
        raise _matches_nothing(pattern, folder, f"a directory of shards ({', '.join(suffixes)})", "none")
    return found


def _shards_of(pattern: str, files: list[str], suffixes: tuple[str, ...]) -> list[str]:
    """Those of the files that are shards.

    Raises:
        ValueError: There are more of the same kind, by names that the source does not take.
    """
    visible = [url for url in files if not base_name(url).startswith(".") and not url.endswith(_SIDECAR)]
    shards = [url for url in visible if url.endswith(suffixes)]
    spellings = [spelling for suffix, spelling in _SPELLINGS.items() if suffix in suffixes]
    others = [url for url in visible if not url.endswith(suffixes) and _is_spelt(base_name(url), spellings)]
    if others:
        named = ", ".join(repr(url) for url in others[:_MAX_NAMED]) + (", …" if len(others) > _MAX_NAMED else "")
        raise ValueError(
            f"shards: pattern '{pattern}': expected shards that end in {' or '.join(suffixes)}, got {len(shards)} of "
            f"them, and {len(others)} of the same kind by other names: {named}\n"
            f"  Rename or convert them; to leave them out, write a glob such as '**/*{suffixes[0]}'."
        )
    return shards


def _is_spelt(name: str, spellings: Sequence[re.Pattern[str]]) -> bool:
    return ".meta." not in name.lower() and any(spelling.search(name) for spelling in spellings)


def _matches_nothing(pattern: str, piece: str, expected: str, got: str) -> FileNotFoundError:
    where = f" (its part '{piece}')" if piece != pattern else ""
    return FileNotFoundError(
        f"shards: pattern '{pattern}'{where}: expected {expected}, got {got}\n  Check the path, and what is there."
    )


def _canonical(url: str) -> str:
    """What all spellings of one location have in common."""
    if is_pipe(url):
        return url
    if is_remote(url):
        return canonical_url(url)
    return os.path.abspath(local_path(url))
