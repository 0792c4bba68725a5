"""The text of a recipe: `groups of files → targets, params and what was seen, as comments → YAML`."""

import os
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import yaml

from streamdata.errors import counted, one_line
from streamdata.shards.readers import Record
from streamdata.sources.functions.images import IMAGE_FIELDS
from streamdata.stores.datasets.window_datasets import SeqDataset
from streamdata.stores.factory import open_store
from streamdata.text.formats import fitting
from streamdata.text.image_text_pairs import TEXT_FIELDS
from streamdata.tools.init.find import CSV, IMAGES, STORE, TARS, Group

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
        sources.append(source._replace(name=_name(path, group.path, taken), about=[_amount(group), *source.about]))
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
    about = [f"The first record: {_fields(row)}."] if row else []
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


def _amount(group: Group) -> str:
    if not group.files:
        return "Elsewhere: not looked at."
    return f"{counted(len(group.files), 'file')}, {sum(map(os.path.getsize, group.files)) / 1e6:,.1f} MB."


def _fields(record: Record) -> str:
    """The first fields of a record, with their types."""
    found = [f"{key[:_MAX_NAME]} ({type(value).__name__})" for key, value in record.items()]
    return ", ".join(found[:_MAX_FIELDS]) + f", … {len(found) - _MAX_FIELDS} more" * (len(found) > _MAX_FIELDS)


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
