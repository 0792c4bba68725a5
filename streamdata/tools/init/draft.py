"""The draft of a recipe: `path → groups of files → targets, params and what was seen, as comments → YAML`.

Shards of a folder are one source where their paths differ in digits alone: `train-00000` and `train-00001` are one,
`docs/0` and `code/0` are two. A store, or images in folders of classes, are named by the folder that holds them alone.
"""

import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from streamdata.errors import StoreError, counted, one_line, shown
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
from streamdata.sources.functions.images import IMAGE_FIELDS
from streamdata.stores.datasets.window_datasets import SeqDataset
from streamdata.stores.factory import detect_format, open_store
from streamdata.stores.store import store_files
from streamdata.text.formats import fitting
from streamdata.text.image_text_pairs import TEXT_FIELDS

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


_READERS: Final = {
    **dict.fromkeys(("preference", "unpaired-preference"), "streamdata.PreferenceDataset"),
    **dict.fromkeys(("language-modeling", "prompt-completion", "sharegpt", "alpaca"), "streamdata.SFTChatDataset"),
    "prompt-only": "streamdata.RLHFDataset",
}
"""The target that makes tensors of rows, by their format; where several fit, the first."""
_TOKENIZER: Final = "${variables:tokenizer}"
_MAX_FIELDS, _MAX_NAME, _WIDTH = 8, 24, 74
_LENGTH: Final = 2048


class Draft(NamedTuple):
    """One source of a recipe.

    Attributes:
        target: What reads it.
        params: What that is given.
        about: What was seen and what was guessed, a comment each.
        function: What could make tensors of its records, which stands there as a comment.
        name: Its name, unique in the recipe.
    """

    target: str
    params: dict[str, Any]
    about: list[str]
    function: dict[str, Any] | None = None
    name: str = ""


def draft_sources(path: str, groups: Sequence[Group], taken: set[str]) -> list[Draft]:
    """Drafts the sources of what lies at a path.

    Args:
        path: As it was given.
        groups: What `find_groups` found there.
        taken: Names of other sources; those of these are added.

    Raises:
        OSError: A store cannot be read.
        ValueError: A store or a sidecar is damaged, or a store serves no train type.
    """
    sources: list[Draft] = []
    for group in groups:
        source = _of_store(str(group.path)) if group.kind == STORE else _of_rows(group)
        amount = f"{counted(len(group.files), 'file')}, {sum(map(os.path.getsize, group.files)) / 1e6:,.1f} MB."
        about = [amount if group.files else "Elsewhere: not looked at.", *source.about]
        sources.append(source._replace(name=_name(path, group.path, taken), about=about))
    return sources


def _name(root: str, path: str | list[str], taken: set[str]) -> str:
    """A name that no other source has: what its files have in common below the root, else the root's own."""
    common = re.split(r"[*?\[{]", path if isinstance(path, str) else os.path.dirname(path[0]))[0].rstrip("/")
    text = re.sub(r"\.[^/]*\Z", "", common[len(root) :] or os.path.basename(os.path.abspath(common)))
    text = re.sub(r"([-_./]\d+)?(-of-\d*)?([-_./]+\d*)?\Z", "", text)  # the number of a shard
    base = re.sub(r"\W+", "_", text).strip("_")[-_MAX_NAME:] or "data"
    name = next(name for number in count(1) if (name := base if number == 1 else f"{base}_{number}") not in taken)
    taken.add(name)
    return name


def _of_rows(group: Group) -> Draft:
    """Records as they are; or what makes tensors of rows of images, conversations, pairs and prompts."""
    row = group.record or {}
    fields = [f"{key[:_MAX_NAME]} ({type(value).__name__})" for key, value in row.items()]
    more = f", … {len(fields) - _MAX_FIELDS} more" * (len(fields) > _MAX_FIELDS)
    about = [f"The first record: {', '.join(fields[:_MAX_FIELDS])}{more}."] if row else []
    function = None if group.kind == IMAGES else _function(row)
    source = Draft(group.kind, {"path": group.path, **group.params}, about, function)
    if not row or group.kind in (TARS, CSV, IMAGES):
        return source
    formats = [one for one in fitting(row, list(_READERS)) if one != ("language-modeling", "standard")]
    if not formats:
        return source
    guess = f"A guess: {' or '.join(map(str, formats))}. As they are, {source.target} reads rows, by 'path'."
    about = [*source.about, guess, "Its tokenizer is a folder, or a name of the hub: --var tokenizer=NAME."]
    params = {"data_files": group.path, "tokenizer": _TOKENIZER, "config": {"format": formats[0].name}}
    return Draft(_READERS[formats[0].name], params, about)


def _function(record: Record) -> dict[str, Any] | None:
    """The process function that records with images and texts, or with texts, may want."""
    if not record.keys().isdisjoint(IMAGE_FIELDS) and not record.keys().isdisjoint(TEXT_FIELDS):
        params = {"img_size": 224, "max_text_len": 77, "tokenizer_name": _TOKENIZER}
        return {"target": "streamdata.ImageTextPairProcessFnBuilder", "params": params}
    texts = {key: len(value) for key, value in record.items() if isinstance(value, str)}
    if not texts:
        return None
    key = "text" if "text" in texts else max(texts, key=texts.__getitem__)
    params = {"max_sequence_length": _LENGTH, "tokenizer_name": _TOKENIZER, "text_key": key}
    return {"target": "streamdata.TextJsonlProcessFnBuilder", "params": params}


def _of_store(path: str) -> Draft:
    store = open_store(path, verify=False)
    types = store.train_types
    if not types:
        SeqDataset(store=store, window_size=1)  # it says what is missing
    params: dict[str, Any] = {"train_type": types[-1], "load_path": path}  # what needs most keys was meant
    about = [f"Values: {', '.join(f'{len(store.column(key)):,} in {key}' for key in store.keys)}."]
    if len(types) > 1:
        about.append(f"A guess: it is for {types[-1]}; it serves {', '.join(types[:-1])}, too.")
    if store.storage_type == "tokens":
        about.append("A guess, where the file does not say it: tokens of uint16. Others need a dtype.")
    if types[-1] in ("seq", "sft"):
        params["window_size"] = min(_LENGTH, 1 << max(0, len(store.column("sequence")).bit_length() - 2))
    return Draft(STORE, params, about)


def recipe_text(sources: Sequence[Draft], paths: Sequence[str]) -> str:
    """Writes the recipe of some sources, which have equal weights."""
    lines = _comments(
        f"Written by 'streamdata init {' '.join(paths)}'. What is a guess says so.",
        "A folder is a source for each kind of files, and for names that differ in more than digits.",
    )
    dump: Callable[..., Any] = partial(yaml.safe_dump, sort_keys=False, allow_unicode=True, width=_WIDTH)
    lines += ["target: streamdata.MergedDataset", "params:", "  seed: 0", "  datasets:"]
    for source in sources:
        node = {"target": source.target, "params": source.params, "name": source.name, "percent": 1}
        own = [*_comments(*source.about), *dump([node]).splitlines()]
        if source.function:
            commented = dump({"process_fn": source.function}).splitlines()
            own += [f"  # {line}" for line in ("A guess: this makes tensors; uncomment it.", *commented)]
        lines += [f"    {line}" for line in own]
    return "\n".join([*lines, ""])


def _comments(*texts: str) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(f"# {one_line(text)}", _WIDTH, subsequent_indent="#   ")]
