"""Which files a store consists of, in the order in which every rank reads them."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from streamdata.errors import StoreError

META: Final = "meta.json"
_DIGITS = re.compile(r"(\d+)")
_SHOWN = 5


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts shard_2 before shard_10."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def store_files(path: Path) -> list[str]:
    """All files below a directory, relative to it, in natural order; what begins with a dot is passed over.

    Raises:
        FileNotFoundError: There is no such directory.
        StoreError: It is a file.
    """
    if not path.exists():
        raise FileNotFoundError(f"store '{path}': expected a directory of shards, got nothing there")
    if not path.is_dir():
        raise StoreError(f"store '{path}': expected a directory of shards, got a file\n  Name the directory it is in.")
    return sorted(_walk(str(path), "", ()), key=natural)


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


def suffixed(files: Sequence[str], suffix: str) -> list[str]:
    """Those that end so."""
    return [file for file in files if file.endswith(suffix)]


def meta_files(files: Sequence[str]) -> list[str]:
    """Every `meta.json`."""
    return [file for file in files if file.rpartition("/")[2] == META]


def detect_format(load_path: str | Path) -> str:
    """`h5` where there are *.h5 files, `bin` for *.bin with meta.json, `megatron` for *.bin with *.idx.

    Raises:
        FileNotFoundError: There is no such directory.
        StoreError: None of these, or several at once.
    """
    files = store_files(Path(load_path))
    bins = bool(suffixed(files, ".bin"))
    found = {
        "h5": suffixed(files, ".h5"),
        "bin": meta_files(files) if bins else [],
        "megatron": suffixed(files, ".idx") if bins else [],
    }
    formats = [name for name, some in found.items() if some]
    if len(formats) == 1:
        return formats[0]
    if formats:
        shown = "; ".join(f"{name} ({', '.join(found[name][:2])}, …)" for name in formats)
        raise StoreError(
            f"store '{load_path}': expected one format, got {len(formats)}: {shown}\n  Give each its own directory."
        )
    shown = ", ".join(files[:_SHOWN]) + (", …" if len(files) > _SHOWN else "") if files else "no files"
    raise StoreError(
        f"store '{load_path}': expected *.h5, *.bin with meta.json, or *.bin with *.idx, got {shown}\n"
        "  Name the directory that the store was written to."
    )
