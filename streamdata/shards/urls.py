"""Which shards a recipe means: `braces, globs, directories, lists → sorted urls`."""

import os
import re
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

import fsspec
from braceexpand import braceexpand

from streamdata.shards.storage import is_pipe, is_remote, local_path

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_COMPRESSED = (".gz", ".tgz", ".zst")
_SIDECAR = ".meta.jsonl"
_COPIES = re.compile(r"(.+)\*([0-9]+)")
_ALLOW_PIPES = "STREAMDATA_ALLOW_PIPES"


def is_sequential(url: str) -> bool:
    """Whether the shard can only be read from its start: it is compressed or piped."""
    return is_pipe(url) or url.endswith(_COMPRESSED)


def expand(
    path: str | Sequence[str], suffixes: tuple[str, ...], include_dirs: str | Sequence[str] | None = None
) -> list[str]:
    """The urls of all shards, sorted, as the recipe spells them.

    Args:
        path: Brace expressions, globs and directories (their shards, not those of their subdirectories): a list, or
            one text with commas between them (outside braces). Names that are spelt out need no suffix.
        suffixes: Suffixes of shards, for globs and directories. Sidecars (.meta.jsonl) and hidden files are left out.
        include_dirs: More directories, each with an optional '*n' at its end: n copies of each shard per epoch.

    Raises:
        FileNotFoundError: A pattern matches nothing.
        ValueError: A shard is named twice, a pattern is empty, or a pipe is named without leave.
    """
    found: dict[str, tuple[str, str]] = {}  # place → url, pattern
    copies: dict[str, int] = {}
    for pattern, count, urls in _patterns(path, suffixes, include_dirs):
        for url in urls:
            place = _place(url)
            if place in found:
                raise ValueError(
                    f"shards: expected '{url}' once, got it by '{found[place][1]}' and by '{pattern}'\n"
                    "  Drop one of them; for several copies per epoch, use include_dirs with '*n'."
                )
            found[place] = url, pattern
            copies[url] = count
    if not found:
        raise ValueError("shards: expected a path, got none\n  Name at least one shard, directory or pattern.")
    return sorted(url for url, _ in found.values() for _ in range(copies[url]))


def _patterns(
    path: str | Sequence[str], suffixes: tuple[str, ...], include_dirs: str | Sequence[str] | None
) -> Iterator[tuple[str, int, list[str]]]:
    """Each pattern, how many copies it asks for, and its urls."""
    for pattern in _listed(path):
        yield pattern, 1, _expand_pattern(pattern, suffixes)
    for pattern in _listed(include_dirs or ()):
        match = _COPIES.fullmatch(pattern)
        folder, count = (match[1], int(match[2])) if match else (pattern, 1)
        if not count:
            raise ValueError(f"include_dirs: expected at least one copy, got '{pattern}'\n  Drop it, or write *1.")
        yield pattern, count, _directory(pattern, folder, suffixes)


def _listed(path: str | Sequence[str]) -> list[str]:
    if not isinstance(path, str):
        patterns = list(path)
    elif not path or is_pipe(path) or (not is_remote(path) and os.path.exists(local_path(path))):
        patterns = [path] if path else []
    else:
        patterns = [pattern.strip() for pattern in split_commas(path)]
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise ValueError(f"shards: expected the text of a pattern, got {pattern!r} in {path!r}\n  Remove it.")
    return patterns


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


def _expand_pattern(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    if is_pipe(pattern):
        if os.environ.get(_ALLOW_PIPES) != "1":
            raise ValueError(
                f"shards: expected files, got '{pattern}', a command that would be run\n"
                f"  If you trust it, set {_ALLOW_PIPES}=1 in the environment."
            )
        return list(braceexpand(pattern))
    is_literal = not is_remote(pattern) and os.path.exists(local_path(pattern))  # a name that itself has braces
    pieces = [pattern] if is_literal else braceexpand(pattern)
    return [url for piece in pieces for url in _expand_piece(pattern, piece, suffixes)]


def _expand_piece(pattern: str, piece: str, suffixes: tuple[str, ...]) -> list[str]:
    """The urls of one glob, directory or file."""
    matches = _matches(piece)
    if matches is None:
        if _is_folder(piece, suffixes):
            return _directory(pattern, piece, suffixes)
        if is_remote(piece) or Path(local_path(piece)).is_file():
            return [piece]  # a remote file is not looked for until its index is: that would be a request for each
        raise _matches_nothing(pattern, piece, "a file or directory", "none")
    found: list[str] = []
    for match in matches:
        if _is_folder(match, suffixes):
            found += _shards_in(match, suffixes)
        elif _is_shard(match, suffixes):
            found.append(match)
    if not found:
        got = f"{len(matches)} files, none of them one" if matches else "nothing"
        raise _matches_nothing(pattern, piece, f"shards ({', '.join(suffixes)})", got)
    return found


def _matches(piece: str) -> list[str] | None:
    """The sorted urls that a glob matches; None where it is no glob."""
    if not is_remote(piece):
        path = local_path(piece)
        scheme = piece[: len(piece) - len(path)]
        is_glob = has_magic(path) and not os.path.lexists(path)
        return sorted(scheme + match for match in glob(path)) if is_glob else None
    in_query = piece.startswith(("http://", "https://"))  # where a question mark begins a query
    if "*" not in piece and (in_query or not has_magic(piece)):
        return None
    filesystem, path = fsspec.core.url_to_fs(piece)
    return sorted(_spelt(filesystem, match) for match in filesystem.glob(path))


def _is_folder(url: str, suffixes: tuple[str, ...]) -> bool:
    if not is_remote(url):
        return Path(local_path(url)).is_dir()
    if url.endswith(suffixes):  # to ask would be a request for each
        return False
    filesystem, path = fsspec.core.url_to_fs(url)
    return bool(filesystem.isdir(path))


def _spelt(filesystem: Any, path: str) -> str:
    return str(filesystem.unstrip_protocol(path))


def _directory(pattern: str, folder: str, suffixes: tuple[str, ...]) -> list[str]:
    found = _shards_in(folder, suffixes) if is_remote(folder) or Path(local_path(folder)).is_dir() else []
    if not found:
        raise _matches_nothing(pattern, folder, f"a directory of shards ({', '.join(suffixes)})", "none")
    return found


def _shards_in(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    if is_remote(folder):
        filesystem, path = fsspec.core.url_to_fs(folder)
        listed = filesystem.ls(path, detail=True) if filesystem.isdir(path) else []
        names = [_spelt(filesystem, entry["name"]) for entry in listed if entry["type"] == "file"]
    else:
        with os.scandir(local_path(folder)) as entries:
            names = [os.path.join(folder, entry.name) for entry in entries if entry.is_file()]
    return sorted(name for name in names if _is_shard(name, suffixes))


def _is_shard(url: str, suffixes: tuple[str, ...]) -> bool:
    return url.endswith(suffixes) and not url.endswith(_SIDECAR) and not url.rpartition("/")[2].startswith(".")


def _matches_nothing(pattern: str, piece: str, expected: str, got: str) -> FileNotFoundError:
    where = f" (its part '{piece}')" if piece != pattern else ""
    return FileNotFoundError(
        f"shards: pattern '{pattern}'{where}: expected {expected}, got {got}\n  Check the path, and what is there."
    )


def _place(url: str) -> str:
    """What two spellings of one place have in common."""
    if is_pipe(url):
        return url
    if is_remote(url):
        filesystem, path = fsspec.core.url_to_fs(url)
        return _spelt(filesystem, path)
    return os.path.abspath(local_path(url))
