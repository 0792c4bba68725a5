"""Params of a recipe's targets → those whose shards, stores or tokenizers are not there."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from streamdata.errors import shown
from streamdata.io.remote.addresses import options_of_source
from streamdata.io.remote.once import stat_once
from streamdata.io.storage import is_pipe, is_remote
from streamdata.recipe.yaml_tree import Kind
from streamdata.shards.listing import check_braces, is_glob
from streamdata.shards.tar.sidecar import find_sidecars
from streamdata.shards.urls import expand_home, find_shards, split_commas
from streamdata.sources.files.shard_datasets import SHARD_SUFFIXES
from streamdata.stores.factory import detect_format
from streamdata.stores.store import store_files
from streamdata.text.tokenizer import check_name

_ANY: Final = ("",)
_PATHS: Final = {**SHARD_SUFFIXES, "streamdata.ImageFolderDataset": _ANY}
"""By a source with a parameter `path`: what it takes in a folder."""
_FILES: Final = ("jsonl_path", "data_files")
_TARS: Final = "streamdata.MetaDistributedWebDataset"
_CONFIG: Final = "config"
SETTINGS: Final = {
    "streamdata.SFTChatDataset": ("streamdata.chats.chat_dataset", "SFTChatConfig"),
    "streamdata.PreferenceDataset": ("streamdata.chats.chat_dataset", "PreferenceConfig"),
    "streamdata.RLHFDataset": ("streamdata.chats.settings", "PromptConfig"),
}
"""By a target with `config`: the module and class that know its keys, imported where one is."""
_PLAIN: Final = (str, int, float, bool, type(None))
_TOKENIZERS: Final = ("tokenizer", "tokenizer_name", "processor")


class RecipeFiles:
    """Looks for the files that params name; those of stores elsewhere and of the hub only where it is told to.

    Args:
        online: Whether to ask stores and the hub, too.
    """

    def __init__(self, *, online: bool = False) -> None:
        self._online = online

    def __call__(self, target: str, params: Mapping[str, Any]) -> Iterator[tuple[str, str, Kind]]:
        """Yields the name of each parameter whose files are not there, with what is wrong, or that nobody looked."""
        for name, value in params.items():
            look = self._look(target, name, params)
            if look and value and (name == _CONFIG or all(isinstance(one, str) for one in _listed(value))):
                try:
                    not_checked = look(value)
                except (OSError, ValueError) as error:  # also of a dead host, or a damaged manifest
                    yield name, str(error), "error"
                else:
                    if not_checked:
                        yield name, not_checked, "not checked"

    def _look(self, target: str, name: str, params: Mapping[str, Any]) -> Callable[[Any], str | None] | None:
        """Return a function that looks for the files of a parameter, if any; it returns why it did not look."""
        if name == _CONFIG and target in SETTINGS:
            return lambda value: _settings(target, value)
        if name == "paths" and target == "streamdata.BlendableDataset.from_megatron":
            return _blend
        if name == "path" and target in _PATHS:
            return lambda value: self._shards(value, _PATHS[target], params)
        looks: dict[str, Callable[[Any], str | None]] = {
            "load_path": lambda value: _store(value, params.get("storage_type")),
            "meta_names": lambda _: _sidecars(params),
            **dict.fromkeys(_TOKENIZERS, self._tokenizer),
            **dict.fromkeys(_FILES, lambda value: self._shards(value, _ANY, params)),
        }
        return looks.get(name)

    def _shards(self, value: str | Sequence[str], suffixes: tuple[str, ...], params: Mapping[str, Any]) -> None:
        patterns = [one for text in _listed(value) for one in _parts(text)]
        local = [one for one in patterns if not is_pipe(one) and "://" not in one and "::" not in one]
        if local:
            find_shards(local, suffixes)
        remote = [one for one in patterns if is_remote(one)]
        for one in remote:
            check_braces(one)
        if remote and self._online:
            options = options_of_source(params.get("storage_options"), "check")
            for url in find_shards(remote, suffixes, None, options).urls:
                if url in remote and not is_glob(url):  # of a url that is spelt out nobody has asked yet
                    stat_once(url)

    def _tokenizer(self, name: str) -> str | None:
        check_name(name)
        if Path(name).exists():
            return None
        if self._online:
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
    parts = _parts(path) if isinstance(path, str) else []
    local = [one for one in parts if "://" not in one and not is_pipe(one)]
    with suppress(OSError, ValueError):
        urls = find_shards(local, _PATHS[_TARS], params.get("include_dirs")).urls if local else []
    find_sidecars(urls, {})


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _parts(text: str) -> list[str]:
    if is_pipe(text) or os.path.exists(expand_home(text)):
        return [text]
    return [part.strip() for part in split_commas(text)]
