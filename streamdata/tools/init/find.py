"""Data as it lies: `path → files by kind → groups, each of which becomes a source`.

Shards of a folder are one source where their paths differ in digits alone: `train-00000` and `train-00001` are one,
`docs/0` and `code/0` are two. A store, or images in folders of classes, are named by the folder that holds them alone.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from streamdata.errors import StoreError, shown
from streamdata.fields import is_reserved
from streamdata.io.one_pass import byte_source
from streamdata.io.storage import is_remote
from streamdata.shards.jsonl.lines import numbered_lines
from streamdata.shards.jsonl.rows import parse_row
from streamdata.shards.listing import JSON_SUFFIXES, sidecars_of, with_slash
from streamdata.shards.parquet.file import ROW_SUFFIXES, open_file
from streamdata.shards.readers import NO_FIELDS, Record
from streamdata.shards.sequential import SequentialCsv, SequentialJsonl, SequentialTar
from streamdata.shards.urls import find_shards
from streamdata.sources.files.image_datasets import IMAGE_SUFFIXES, ImageFolderDataset
from streamdata.sources.files.shard_datasets import SHARD_SUFFIXES
from streamdata.stores.factory import detect_format
from streamdata.stores.store import store_files

TARS: Final = "streamdata.MetaDistributedWebDataset"
LINES: Final = "streamdata.JsonlIterableDataset"
CSV: Final = "streamdata.CsvDataset"
IMAGES: Final = "streamdata.ImageFolderDataset"
STORE: Final = "streamdata.DatasetFactory.load"
"""A kind of data is called as the target that reads it as it is."""
_MAX_SERIES: Final = 12
"""Files of one kind with more names than this are one source, whatever they are called."""


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
    files: Sequence[str] = ()
    record: Record | None = None
    params: Mapping[str, Any] = NO_FIELDS


def find_groups(path: str) -> list[Group]:
    """Finds what lies at a path: a file, a folder, a store, a pattern, or a url, of which nothing is read.

    Raises:
        OSError: Nothing is there, or it cannot be read.
        ValueError: It is of no known kind, empty or damaged.
    """
    endings = SHARD_SUFFIXES | {LINES: (*SHARD_SUFFIXES[LINES], *JSON_SUFFIXES)}
    kind = next((kind for kind, suffixes in endings.items() if path.endswith(suffixes)), None)
    if kind is not None and is_remote(path):
        return [Group(kind, path)]
    if kind is not None and not os.path.isdir(path):
        return [_read(Group(kind, path, find_shards(path, SHARD_SUFFIXES[kind]).urls))]
    if not is_remote(path):
        with suppress(StoreError):
            detect_format(path)
            folder, names = store_files(Path(path))
            return [Group(STORE, path, [str(folder / name) for name in names])]
        kinds = SHARD_SUFFIXES if os.path.isdir(path) else ()
        if groups := [_read(group) for kind in kinds for group in _in_folder(path, kind)]:
            return groups
        files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        if images := [file for file in files if file.lower().endswith(IMAGE_SUFFIXES)]:
            return [Group(IMAGES, path, images, ImageFolderDataset(path)[0])]
    got = "a url that does not say: name its shards, such as 's3://bucket/web/*.tar'" if is_remote(path) else "none"
    raise ValueError(
        f"init: {shown(path)}: expected data of a known kind, got {got}\n"
        "  Known are tars, JSON Lines, parquet, CSV, token stores, and images in\n"
        "  folders of classes. Texts become stores by 'streamdata prepare'."
    )


def _in_folder(root: str, kind: str) -> Iterator[Group]:
    """Parts the shards of one kind by their paths without digits and suffixes; each path means just these."""
    suffixes, series = SHARD_SUFFIXES[kind], defaultdict[str, list[str]](list)
    with suppress(FileNotFoundError):
        for file in find_shards(root, suffixes).urls:
            folder, base = os.path.split(file)
            series[re.sub(r"\d+", "", f"{folder}/{base.partition('.')[0]}")].append(file)
    if len(series) > _MAX_SERIES:
        series = defaultdict(list, {"": sorted(file for some in series.values() for file in some)})
    for some in series.values():
        pattern = root + re.sub(r"\d+", "*", some[0][len(root) :])
        below = os.path.commonpath([os.path.dirname(file[len(with_slash(root)) :]) for file in some])
        paths = (os.path.join(root, below) if below else root, some[0], pattern)
        yield Group(kind, next((path for path in paths if find_shards(path, suffixes).urls == some), some), some)


def _read(group: Group) -> Group:
    """The group with its first record."""
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
