"""Params of a recipe's targets → those whose shards, stores or tokenizers are not there."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final

from streamdata.errors import did_you_mean, shown
from streamdata.io.remote.addresses import checked_options, options_of_source
from streamdata.io.remote.once import stat_once
from streamdata.io.storage import is_pipe, is_remote
from streamdata.recipe.targets import import_target
from streamdata.recipe.yaml_tree import Kind
from streamdata.shards.listing import check_braces, is_glob
from streamdata.shards.tar.sidecar import find_sidecars
from streamdata.shards.urls import expand_home, find_shards, split_commas
from streamdata.sources.files.shard_datasets import SHARD_SUFFIXES
from streamdata.stores.factory import detect_format
from streamdata.stores.store import store_files
from streamdata.text.tokenizer import check_name

_PATHS: Final = {**SHARD_SUFFIXES, "streamdata.ImageFolderDataset": ("",)}
"""By a source with a parameter `path`: what it takes in a folder."""
SETTINGS: Final = {
    "streamdata.SFTChatDataset": ("streamdata.chats.chat_dataset", "SFTChatConfig"),
    "streamdata.PreferenceDataset": ("streamdata.chats.chat_dataset", "PreferenceConfig"),
    "streamdata.RLHFDataset": ("streamdata.chats.settings", "PromptConfig"),
}
"""By a target with `config`: the module and class that know its keys, imported where one is."""
_HANDING_ON: Final = ("streamdata.DatasetFactory.load", "streamdata.BlendableDataset.from_megatron")
"""Targets that hand `**options` on to the class of a dataset over a store."""
_PLAIN: Final = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class RecipeFiles:
    """Looks for the files that params name; those of stores elsewhere and of the hub only where it is told to.

    Attributes:
        online: Whether to ask stores and the hub, too.
    """

    online: bool = False

    def __call__(self, target: str, params: Mapping[str, Any]) -> Iterator[tuple[str, str, Kind]]:
        """Yields the name of each parameter whose files are not there, with what is wrong, or that nobody looked."""
        for name, value in params.items():
            try:
                if target in _HANDING_ON:
                    _check_option(target, name, params)
                if value and (not_checked := self._look(target, name, value, params)):
                    yield name, not_checked, "not checked"
            except (OSError, ValueError) as error:  # also of a dead host, or a damaged manifest
                yield name, str(error), "error"

    def _look(self, target: str, name: str, value: Any, params: Mapping[str, Any]) -> str | None:
        """Look for the files of a parameter, if it names any; return why it did not look."""
        if name == "config" and target in SETTINGS:
            _settings(target, value)
        if name == "storage_options" and not _is_built(value):
            checked_options(value, "check")
        if not all(isinstance(text, str) for text in _listed(value)):
            return None  # what is built, whose files only the builder knows
        match name:
            case "path" if target in _PATHS:
                self._shards(value, _PATHS[target], params)
            case "jsonl_path" | "data_files":
                self._shards(value, ("",), params)
            case "paths" if target == "streamdata.BlendableDataset.from_megatron":
                _blend(value)
            case "load_path":
                _store(value, params.get("storage_type"))
            case "meta_names":
                _sidecars(params)
            case "tokenizer" | "tokenizer_name" | "processor":
                return self._tokenizer(value)
        return None

    def _shards(self, value: str | Sequence[str], suffixes: tuple[str, ...], params: Mapping[str, Any]) -> None:
        local, remote = _local_and_remote(value)
        if local:
            find_shards(local, suffixes)
        for one in remote:
            check_braces(one)
        if remote and self.online:
            options = options_of_source(params.get("storage_options"), "check")
            for url in find_shards(remote, suffixes, None, options).urls:
                if url in remote and not is_glob(url):  # of a url that is spelt out nobody has asked yet
                    stat_once(url)

    def _tokenizer(self, name: str) -> str | None:
        check_name(name)
        if Path(name).exists():
            return None
        if self.online:
            from transformers.utils.hub import cached_file  # it knows mirrors, tokens and what was loaded before

            cached_file(name, "tokenizer_config.json")
            return None
        return f"not checked: no folder {shown(name)} is here, and it looks like a hub name\n  --online asks the hub."


def _store(name: str, storage_type: object = None) -> None:
    if storage_type is None:
        detect_format(name)
    else:  # perhaps one that is registered, whose files nobody else knows
        store_files(Path(name))


def _blend(paths: Any) -> None:
    """The prefixes of a Megatron command line, which may have weights before them."""
    for word in (word for text in _listed(paths) for word in text.split()):
        try:
            float(word)
        except ValueError:
            _store(word)


def _check_option(target: str, name: str, params: Mapping[str, Any]) -> None:
    """A key is the target's own, or one of the class that it makes, if that is known here."""
    from streamdata.stores.datasets.record_datasets import DatasetFactory  # who checks it has imported it

    functions: list[Any] = [import_target(target), DatasetFactory.classes.get(str(params.get("train_type", "seq")))]
    keys = (key for each in functions if each for key in signature(each).parameters if key != "options")
    taken = dict.fromkeys(keys)
    if functions[-1] and name not in taken:
        raise ValueError(f"unknown parameter {shown(name)}{did_you_mean(name, taken)}\n  It takes: {', '.join(taken)}.")


def _settings(target: str, config: Any) -> None:
    """The keys of rows' settings, but those whose values are known only when they are built."""
    module, name = SETTINGS[target]
    if isinstance(config, dict):
        known = {key: value for key, value in config.items() if not _is_built(value)}
        getattr(import_module(module), name).read(known, target.rpartition(".")[2])


def _is_built(value: Any) -> bool:
    if isinstance(value, dict):
        return not {"target", "include"}.isdisjoint(value) or any(map(_is_built, value.values()))
    return any(map(_is_built, value)) if isinstance(value, list) else type(value) not in _PLAIN


def _sidecars(params: Mapping[str, Any]) -> None:
    """Each tar of this machine has its sidecar; what is wrong with the path itself is said of that."""
    path, urls = params.get("path"), list[str]()
    if isinstance(path, str):
        with suppress(OSError, ValueError):
            suffixes = _PATHS["streamdata.MetaDistributedWebDataset"]
            urls = find_shards(_local_and_remote(path)[0], suffixes, params.get("include_dirs")).urls
    find_sidecars(urls, {})


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _local_and_remote(value: Any) -> tuple[list[str], list[str]]:
    """The patterns of files on this machine, and of those in stores; what programs print is neither."""
    found = list[str]()
    for text in _listed(value):
        is_one = is_pipe(text) or os.path.exists(expand_home(text))
        found += [text] if is_one else [part.strip() for part in split_commas(text)]
    local = [one for one in found if not is_pipe(one) and "://" not in one and "::" not in one]
    return local, [one for one in found if is_remote(one)]
