"""Which files a store consists of, in the order in which every rank reads them."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from streamdata.errors import StoreError

META: Final = "meta.json"
H5_SUFFIXES: Final = (".h5", ".hdf5")
TOKEN_SUFFIXES: Final = (".npy", ".ds")
"""Of files of bare tokens that are known by their names; a `.bin` alone is one, too."""
_PAIR = (".bin", ".idx")
_DIGITS = re.compile(r"(\d+)")
_SHOWN = 5


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts shard_2 before shard_10."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


class StoreFiles(NamedTuple):
    """The files of a store.

    Attributes:
        root: The directory they lie in, at some depth.
        names: Relative to it, in the order of every rank.
    """

    root: Path
    names: list[str]


def store_files(path: Path) -> StoreFiles:
    """All files below a directory, in natural order; what begins with a dot is passed over. Or a file, or a pair.

    Args:
        path: A directory; a file; what a `.bin` and an `.idx` have before their suffixes, with or without one of these.

    Raises:
        FileNotFoundError: There is nothing.
        StoreError: There is only one of the two files.
    """
    if pair := _pair(path):
        return StoreFiles(path.parent, pair)
    if path.is_dir():
        return StoreFiles(path, sorted(_walk(str(path), "", ()), key=natural))
    if path.exists():
        return StoreFiles(path.parent, [path.name])
    raise FileNotFoundError(
        f"store '{path}': expected a directory of shards, a file, or a .bin and an .idx of that name, got nothing there"
    )


def _pair(path: Path) -> list[str]:
    """The names of a `.bin` and its `.idx`, where the path stands for both."""
    prefix = path.name[:-4] if path.suffix in _PAIR else path.name
    pair = [f"{prefix}{suffix}" for suffix in _PAIR]
    there = [name for name in pair if path.with_name(name).is_file()] if path.name else []
    if len(there) == len(pair):
        # Megatron keeps its indices in a directory with the name of the pair: that is no other store.
        return [] if path.is_dir() and suffixed(list(_walk(str(path), "", ())), *H5_SUFFIXES, *_PAIR) else pair
    if there and (path.suffix == ".idx" or not (path.exists() or path.suffix == ".bin")):
        raise StoreError(
            f"store '{path}': expected {pair[0]} and {pair[1]}, got only {there[0]}\n"
            "  The .idx comes last: write or copy the pair again."
        )
    return []


def _walk(directory: str, prefix: str, above: Sequence[tuple[int, int]]) -> Iterator[str]:
    status = os.stat(directory)
    identity = (status.st_dev, status.st_ino)
    if identity in above:  # a link to a directory above
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, identity))
            else:
                yield prefix + entry.name


def suffixed(files: Sequence[str], *suffixes: str) -> list[str]:
    """Those that end so."""
    return [file for file in files if file.endswith(suffixes)]


def meta_files(files: Sequence[str]) -> list[str]:
    """Every `meta.json`."""
    return [file for file in files if file.rpartition("/")[2] == META]


def detect_format(load_path: str | Path) -> str:
    """The format of a store, by the names of its files.

    `h5` for *.h5 and *.hdf5, `bin` for *.bin with meta.json, `megatron` for *.bin with *.idx, `tokens` for *.npy, *.ds
    and a *.bin that is named itself.

    Raises:
        FileNotFoundError: There is nothing.
        StoreError: None of these, or several at once.
    """
    path = Path(load_path)
    files = store_files(path).names
    bins = bool(suffixed(files, ".bin"))
    found = {
        "h5": suffixed(files, *H5_SUFFIXES),
        "bin": meta_files(files) if bins else [],
        "megatron": suffixed(files, ".idx") if bins else [],
    }
    formats = [name for name, some in found.items() if some]
    # Last, since a directory of another format may have arrays that belong to it, such as Megatron's indices.
    if not formats and (suffixed(files, *TOKEN_SUFFIXES) or (bins and not path.is_dir())):
        return "tokens"
    if len(formats) == 1:
        return formats[0]
    if formats:
        shown = "; ".join(f"{name} ({', '.join(found[name][:2])}, …)" for name in formats)
        raise StoreError(
            f"store '{load_path}': expected one format, got {len(formats)}: {shown}\n  Give each its own directory."
        )
    shown = ", ".join(files[:_SHOWN]) + (", …" if len(files) > _SHOWN else "") if files else "no files"
    raise StoreError(
        f"store '{load_path}': expected *.h5, *.hdf5, *.bin with meta.json, *.bin with *.idx, *.npy or *.ds, "
        f"got {shown}\n  Name the directory that the store was written to, or one *.bin of nanoGPT or llm.c itself."
    )
