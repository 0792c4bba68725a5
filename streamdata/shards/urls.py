"""Which shards a recipe means: `braces, globs, directories, lists → sorted urls`."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from glob import glob, has_magic
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
    if not is_remote(pattern) and os.path.exists(local_path(pattern)):
        return _expand_piece(pattern, pattern, suffixes)  # a file with braces or stars in its own name
    pieces = braceexpand(pattern)
    return [url for piece in pieces for url in _expand_piece(pattern, piece, suffixes)]


def _expand_piece(pattern: str, piece: str, suffixes: tuple[str, ...]) -> list[str]:
    """The urls of one glob, directory or file."""
    is_file, is_folder, matches = _remote_lookup(piece) if is_remote(piece) else _local_lookup(piece)
    if is_folder(piece):
        return _directory(pattern, piece, suffixes)
    if is_file(piece):
        return [piece]
    found = []
    for match in matches:
        if is_folder(match):
            found += _shards_in(match, suffixes)
        elif _is_shard(match, suffixes):
            found.append(match)
    if not found:
        got = f"{len(matches)} files, none of them one" if matches else "nothing"
        raise _matches_nothing(pattern, piece, f"shards ({', '.join(suffixes)})", got)
    return found


_Test = Callable[[str], bool]


def _local_lookup(piece: str) -> tuple[_Test, _Test, list[str]]:
    path = local_path(piece)
    prefix = piece[: len(piece) - len(path)]
    matches = sorted(glob(path)) if has_magic(path) and not os.path.exists(path) else []
    return (
        lambda url: os.path.isfile(local_path(url)),
        lambda url: os.path.isdir(local_path(url)),
        [prefix + match for match in matches],
    )


def _remote_lookup(piece: str) -> tuple[_Test, _Test, list[str]]:
    """As for local files; but a file without a star in its url is not looked for until its index is."""
    filesystem, path = fsspec.core.url_to_fs(piece)
    is_web = piece.startswith(("http://", "https://"))  # where a question mark begins a query
    has_stars = "*" in piece or ("[" in piece and not is_web) or ("?" in piece and not is_web)
    matches = sorted(_spelt(filesystem, match) for match in filesystem.glob(path)) if has_stars else []

    def is_folder(url: str) -> bool:
        looks_like_a_file = os.path.splitext(url)[1] != "" and not url.endswith("/")
        return not looks_like_a_file and bool(filesystem.isdir(filesystem._strip_protocol(url)))

    return lambda url: not has_stars, is_folder, matches


def _spelt(filesystem: Any, path: str) -> str:
    return str(filesystem.unstrip_protocol(path))


def _directory(pattern: str, folder: str, suffixes: tuple[str, ...]) -> list[str]:
    found = _shards_in(folder, suffixes) if is_remote(folder) or os.path.isdir(local_path(folder)) else []
    if not found:
        raise _matches_nothing(pattern, folder, f"a directory of shards ({', '.join(suffixes)})", "none")
    return found


def _shards_in(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    if is_remote(folder):
        filesystem, path = fsspec.core.url_to_fs(folder)
        listed = filesystem.ls(path, detail=True) if filesystem.isdir(path) else []
        names = [_spelt(filesystem, entry["name"]) for entry in listed if entry["type"] == "file"]
    else:
        path = local_path(folder)
        names = [os.path.join(folder, name) for name in os.listdir(path) if os.path.isfile(os.path.join(path, name))]
    return sorted(name for name in names if _is_shard(name, suffixes))


def _is_shard(url: str, suffixes: tuple[str, ...]) -> bool:
    return url.endswith(suffixes) and not url.endswith(_SIDECAR) and not os.path.basename(url).startswith(".")


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
