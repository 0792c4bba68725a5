"""What a recipe's targets of ours read: are the shards, stores and tokenizers that they name there?"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from streamdata.remote import StorageOptions, options_of_source, stat_once
from streamdata.shards.braces import check_braces
from streamdata.shards.listing import is_glob
from streamdata.shards.storage import is_pipe, is_remote
from streamdata.shards.urls import expand_home, find_shards, split_commas
from streamdata.sources.suffixes import SHARD_SUFFIXES
from streamdata.stores.files import detect_format, store_files
from streamdata.text.directory_tokenizer import check_name

_ANY: Final = ("",)
_PATHS: Final = {**SHARD_SUFFIXES, "streamdata.ImageFolderDataset": _ANY}
"""By a source with a parameter `path`: what it takes in a folder."""
_FILES: Final = ("jsonl_path", "data_files")
_TOKENIZERS: Final = ("tokenizer", "tokenizer_name", "processor")


class RecipeFiles:
    """Looks for the files that params name; those of stores elsewhere and of the hub only where it is told to.

    Args:
        online: Whether to ask stores and the hub, too.
    """

    def __init__(self, *, online: bool = False) -> None:
        self._online = online

    def __call__(self, target: str, params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yields the name of each parameter whose files are not there, with what is wrong."""
        for name, value in params.items():
            look = self._look(target, name, params)
            if look and value and all(isinstance(one, str) for one in _listed(value)):
                try:
                    look(value)
                except (OSError, ValueError) as error:  # also of a dead store, or a damaged manifest
                    yield name, str(error)

    def _look(self, target: str, name: str, params: Mapping[str, Any]) -> Callable[[Any], object] | None:
        """What looks for the files of a parameter, if it names any."""
        if name in _TOKENIZERS:
            return self._tokenizer
        if name == "load_path":
            return lambda value: _store(value, params.get("storage_type"))
        if name == "paths" and target == "streamdata.BlendableDataset.from_megatron":
            return _blend
        if name in _FILES:
            return lambda value: self._shards(value, _ANY, params)
        if name == "path" and target in _PATHS:
            return lambda value: self._shards(value, _PATHS[target], params)
        return None

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
            _ask(remote, suffixes, options)

    def _tokenizer(self, name: str) -> None:
        check_name(name)
        if self._online and not Path(name).exists():
            from transformers.utils.hub import cached_file  # it knows mirrors, tokens and what was loaded before

            cached_file(name, "tokenizer_config.json")


def _ask(remote: list[str], suffixes: tuple[str, ...], options: StorageOptions) -> None:
    for url in find_shards(remote, suffixes, None, options).urls:
        if url in remote and not is_glob(url):  # of a url that is spelt out nobody has asked yet
            stat_once(url)


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


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _parts(text: str) -> list[str]:
    if is_pipe(text) or os.path.exists(expand_home(text)):
        return [text]
    return [part.strip() for part in split_commas(text)]
