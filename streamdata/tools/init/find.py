"""Data as it lies: `path → files by kind → groups, each of which becomes a source`.

Files of a folder are one source where their paths differ in digits alone, as shards do: `train-00000` and `train-00001`
are one, `docs/0` and `code/0` are two.
"""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from streamdata.errors import StreamdataError, counted, shown
from streamdata.fields import is_reserved
from streamdata.io.one_pass import byte_source
from streamdata.io.storage import is_remote
from streamdata.shards.jsonl.lines import begins_array, numbered_lines
from streamdata.shards.jsonl.rows import parse_row
from streamdata.shards.listing import JSON_SUFFIXES, JSONL_SUFFIXES, META_SUFFIX, Listings, sidecars_of, with_slash
from streamdata.shards.parquet.file import ARROW_SUFFIX, ROW_SUFFIXES, open_file, saved_files
from streamdata.shards.readers import NO_FIELDS, Record
from streamdata.shards.sequential import SequentialCsv, SequentialJsonl, SequentialTar
from streamdata.shards.urls import find_shards
from streamdata.sources.files.image_datasets import IMAGE_SUFFIXES, ImageFolderDataset
from streamdata.sources.files.shard_datasets import SHARD_SUFFIXES
from streamdata.stores.factory import detect_format
from streamdata.stores.store import H5_SUFFIXES, store_files
from streamdata.stores.token_files import TOKEN_SUFFIXES

TARS: Final = "streamdata.MetaDistributedWebDataset"
LINES: Final = "streamdata.JsonlIterableDataset"
CSV: Final = "streamdata.CsvDataset"
IMAGES: Final = "streamdata.ImageFolderDataset"
STORE: Final = "streamdata.DatasetFactory.load"
"""A kind of data is called as the target that reads it as it is."""
_SUFFIXES: Final = {
    **SHARD_SUFFIXES, LINES: (*JSONL_SUFFIXES, *JSON_SUFFIXES), STORE: (*H5_SUFFIXES, *TOKEN_SUFFIXES, ".bin", ".idx"),
}  # fmt: skip
_MAX_SERIES: Final = 12
"""Files of one kind with more names than this are one source, whatever they are called."""
_STORED: Final = re.compile(r"/shard_\d+\Z")
"""How the folders end that `StoreWriter` makes in that of a flat store."""


class Group(NamedTuple):
    """The files of one source.

    Attributes:
        kind: The target that reads them.
        path: As the recipe names them.
        files: All of them; none where nobody looked.
        record: The first record, with what its sidecar says; None of stores, and where nobody looked.
        params: What else the target is given: fields of sidecars, where each file has one.
    """

    kind: str
    path: str | list[str]
    files: Sequence[str]
    record: Record | None = None
    params: Mapping[str, Any] = NO_FIELDS


def find_groups(path: str) -> list[Group]:
    """Finds what lies at a path: a file, a folder, a store, a pattern, or a url, of which nothing is read.

    Raises:
        OSError: Nothing is there, or it cannot be read.
        ValueError: It is of no known kind, empty or damaged.
    """
    kind = _kind_of(path)
    if os.path.isdir(path):
        return _in_folder(path)
    if kind in SHARD_SUFFIXES:
        return [_read(Group(kind, path, [] if is_remote(path) else find_shards(path, SHARD_SUFFIXES[kind]).urls))]
    if is_remote(path) or any(_kind_of(file) != STORE for file in _store(path).files):
        raise _unknown(path, "a name that tells of no such file")
    return [_store(path)]


def _kind_of(file: str) -> str | None:
    """The kind of a file, by its name."""
    if file.lower().endswith(IMAGE_SUFFIXES):
        return IMAGES
    return next((kind for kind, suffixes in _SUFFIXES.items() if file.endswith(suffixes)), None)


def _store(path: str) -> Group:
    """The store of one file, or of a pair."""
    folder, names = store_files(Path(path))
    return Group(STORE, path, [str(folder / name) for name in names])


def _unknown(path: str, got: str) -> ValueError:
    return ValueError(
        f"init: {shown(path)}: expected data of a known kind, got {got}\n"
        "  Known are tars, JSON Lines, parquet, CSV, token stores, and images in\n"
        "  folders of classes. Texts become stores by 'streamdata prepare'."
    )


def _in_folder(root: str) -> list[Group]:
    by_kind, files = defaultdict[str, list[str]](list), Listings().files(with_slash(root))
    sidecars = {name for file in files if _kind_of(file) == TARS for name in sidecars_of(file)}
    for file in files:
        kind = _kind_of(file)
        if kind is not None and file not in sidecars and not _is_note(file):
            by_kind[kind].append(file)
    known = [file for some in by_kind.values() for file in some]
    series = [(kind, some) for kind in _SUFFIXES for some in _series(by_kind[kind])]
    groups = [_read(group) for kind, some in series for group in _groups_of(root, kind, some, known)]
    if not any(names_image(group.record) for group in groups):
        images = by_kind[IMAGES]
        above = {os.path.dirname(os.path.dirname(image)) for image in images if "/" in image[len(with_slash(root)) :]}
        for top in sorted(above):  # the uppermost folders of folders with images
            if not any(top.startswith(with_slash(other)) for other in above - {top}):
                some = [image for image in images if image.startswith(with_slash(top))]
                groups.append(Group(IMAGES, top, some, ImageFolderDataset(top)[0]))
    if not groups:
        got = f"{counted(len(files), 'file')} of other kinds" if files else "an empty folder"
        if by_kind[IMAGES]:
            got = f"{counted(len(by_kind[IMAGES]), 'image')} without folders of classes"
        raise _unknown(root, got)
    return sorted(groups, key=lambda group: group.files[0])


def _is_note(file: str) -> bool:
    """Whether it is named as data and is none: settings in .json, caches in .arrow."""
    if file.endswith(ARROW_SUFFIX):
        return file not in saved_files(os.path.dirname(file))
    is_array = file.endswith(".json") and begins_array(byte_source(file).read(4096, 0))
    return file.endswith(META_SUFFIX) or (file.endswith(JSON_SUFFIXES) and not is_array)


def _series(files: Sequence[str]) -> list[list[str]]:
    """Parts the files of one kind by their paths without digits and suffixes; the arrays of a store are together."""
    found = defaultdict[str, list[str]](list)
    for file in files:
        folder, base = os.path.split(file)
        is_array = base.endswith(".bin") and _STORED.search(folder)
        found[re.sub(r"\d+", "", folder if is_array else f"{folder}/{base.partition('.')[0]}")].append(file)
    return list(found.values()) if len(found) <= _MAX_SERIES else [list(files)]


def _groups_of(root: str, kind: str, some: list[str], known: Sequence[str]) -> list[Group]:
    """One group, by a path that means just these files: a folder, a glob, or a list; of stores perhaps several."""
    below = os.path.commonpath([os.path.dirname(file[len(with_slash(root)) :]) for file in some])
    folder = root if len(some) == len(known) else _STORED.sub("", os.path.join(root, below).rstrip("/"))
    is_whole = [file for file in known if file.startswith(with_slash(folder))] == some
    if kind == STORE:
        with suppress(StreamdataError):
            if is_whole and detect_format(folder):
                return [Group(kind, folder, some)]
        return [_store(file) for file in some if not file.endswith(".idx")]
    paths = [folder] * (is_whole and not some[0].endswith(JSON_SUFFIXES)) + some[: len(some) == 1]
    paths.append(root + re.sub(r"\d+", "*", some[0][len(root) :]))
    found = (path for path in paths if find_shards(path, SHARD_SUFFIXES[kind]).urls == sorted(some))
    return [Group(kind, next(found, some), some)]


def names_image(record: Record | None) -> str | None:
    """The field of a record that names an image's file; None if there is none."""
    fields = (record or {}).items()
    return next((key for key, value in fields if str(value).lower().endswith(IMAGE_SUFFIXES)), None)


def _read(group: Group) -> Group:
    """The group with its first record."""
    if group.kind == STORE or not group.files:
        return group
    file = next(filter(os.path.getsize, group.files), group.files[0])
    if file.endswith(ROW_SUFFIXES):
        opened = open_file(file, byte_source(file))
        batch = next((batch for facts in opened.groups() for batch in opened.batches(facts, 1)), None)
        record = None if batch is None else batch.to_pylist()[0]
    else:
        reader = {TARS: SequentialTar, LINES: SequentialJsonl, CSV: SequentialCsv}[group.kind]
        record = next(reader([file]).stream(0), None)
    if isinstance(record, Exception):
        raise record
    if record is None:
        raise ValueError(f"init: {shown(file)}: expected a record, got none\n  Leave it out, or write it again.")
    record = {key: value for key, value in record.items() if not is_reserved(key)}
    sidecars = [next(filter(os.path.exists, sidecars_of(one)), "") for one in group.files if group.kind == TARS]
    first = next(numbered_lines(byte_source(sidecars[0]), sidecars[0]), None) if sidecars and all(sidecars) else None
    if first is None:
        return group._replace(record=record)
    joined = parse_row(first[2], sidecars[0], first[0])
    names = [name for name in joined if name not in record and name != "key"]
    return group._replace(record={**joined, **record}, params={"meta_names": names})
