"""One YAML recipe in, one endless stream of training samples out: mixed by weight, sharded, resumable.

1. recipe → `instantiate_from_yaml` → a `MergedDataset` over a tree of sources
2. dataset → `torch.utils.data.DataLoader(…, collate_fn=mixed_collate)` → batches: lists of dicts
3. batch → `to_state` → states, plain JSON
4. states → `MergedDataset.set_dataloader_states` → the stream goes on where the trainer stood

Names are imported when they are first used, so that `import streamdata` costs nothing and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdata.delivery.collate import mixed_collate
    from streamdata.errors import RecipeError, ShardError, SourceError, StateError, StreamdataError
    from streamdata.mixing.merged import MergedDataset
    from streamdata.progress.merge import merge_states
    from streamdata.progress.to_state import to_state
    from streamdata.recipe import instantiate_from_yaml
    from streamdata.sources.image_jsonl import ImageJsonlDataset
    from streamdata.sources.jsonl import JsonlIterableDataset
    from streamdata.sources.process_image import ImageJsonlProcessFnBuilder, ImageTextPairProcessFnBuilder
    from streamdata.sources.process_text import TextJsonlProcessFnBuilder
    from streamdata.sources.randomness import record_rng
    from streamdata.sources.webdataset import MetaDistributedWebDataset
    from streamdata.view.tree import describe

_MODULES = {
    "ImageJsonlDataset": "sources.image_jsonl",
    "ImageJsonlProcessFnBuilder": "sources.process_image",
    "ImageTextPairProcessFnBuilder": "sources.process_image",
    "JsonlIterableDataset": "sources.jsonl",
    "MergedDataset": "mixing.merged",
    "MetaDistributedWebDataset": "sources.webdataset",
    "RecipeError": "errors",
    "ShardError": "errors",
    "SourceError": "errors",
    "StateError": "errors",
    "StreamdataError": "errors",
    "TextJsonlProcessFnBuilder": "sources.process_text",
    "describe": "view.tree",
    "instantiate_from_yaml": "recipe",
    "merge_states": "progress.merge",
    "mixed_collate": "delivery.collate",
    "record_rng": "sources.randomness",
    "to_state": "progress.to_state",
}

__all__ = [
    "ImageJsonlDataset",
    "ImageJsonlProcessFnBuilder",
    "ImageTextPairProcessFnBuilder",
    "JsonlIterableDataset",
    "MergedDataset",
    "MetaDistributedWebDataset",
    "RecipeError",
    "ShardError",
    "SourceError",
    "StateError",
    "StreamdataError",
    "TextJsonlProcessFnBuilder",
    "describe",
    "instantiate_from_yaml",
    "merge_states",
    "mixed_collate",
    "record_rng",
    "to_state",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'streamdata' has no attribute {name!r}")
    return getattr(import_module(f"streamdata.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
