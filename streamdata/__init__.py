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
    from streamdata.delivery.sampler import ResumableDistributedSampler
    from streamdata.errors import RecipeError, ShardError, SourceError, StateError, StoreError, StreamdataError
    from streamdata.mixing.blendable import BlendableDataset, make_blendable_dataset
    from streamdata.mixing.merged import MergedDataset
    from streamdata.prepare import Pipeline, PrepareConfig, PrepareError
    from streamdata.progress.merge import merge_states
    from streamdata.progress.to_state import to_state
    from streamdata.recipe import instantiate_from_yaml
    from streamdata.sources.chats import PreferenceDataset, SFTChatDataset
    from streamdata.sources.image_jsonl import ImageJsonlDataset
    from streamdata.sources.jsonl import JsonlIterableDataset
    from streamdata.sources.named import named
    from streamdata.sources.process_image import ImageJsonlProcessFnBuilder, ImageTextPairProcessFnBuilder
    from streamdata.sources.process_text import TextJsonlProcessFnBuilder
    from streamdata.sources.prompts import RLHFDataset, collate_fn, prompt_collate
    from streamdata.sources.randomness import record_rng
    from streamdata.sources.webdataset import MetaDistributedWebDataset
    from streamdata.stores.base_dataset import BaseDataset
    from streamdata.stores.collates import dpo_collate, grpo_collate
    from streamdata.stores.dataset_factory import DatasetFactory
    from streamdata.stores.factory import StoreFactory
    from streamdata.stores.files import detect_format
    from streamdata.stores.h5_store import H5Store
    from streamdata.stores.megatron_store import MegatronStore
    from streamdata.stores.mmap_store import MmapStore
    from streamdata.stores.record_datasets import DPODataset, GRPODataset
    from streamdata.stores.seq_dataset import SeqDataset
    from streamdata.stores.sft_dataset import SFTDataset
    from streamdata.stores.store import Store
    from streamdata.stores.writer import StoreWriter
    from streamdata.text import compute_position_id_with_mask, pad_sequence_to_length, postprocess_data
    from streamdata.view.tree import describe

_MODULES = {
    # recipes
    "instantiate_from_yaml": "recipe",
    # mixtures, and what they are made of
    "MergedDataset": "mixing.merged",
    "named": "sources.named",
    "BlendableDataset": "mixing.blendable",
    "make_blendable_dataset": "mixing.blendable",
    # sources of records
    "JsonlIterableDataset": "sources.jsonl",
    "MetaDistributedWebDataset": "sources.webdataset",
    "ImageJsonlDataset": "sources.image_jsonl",
    "RLHFDataset": "sources.prompts",
    "SFTChatDataset": "sources.chats",
    "PreferenceDataset": "sources.chats",
    # functions of records
    "TextJsonlProcessFnBuilder": "sources.process_text",
    "ImageJsonlProcessFnBuilder": "sources.process_image",
    "ImageTextPairProcessFnBuilder": "sources.process_image",
    "record_rng": "sources.randomness",
    # from samples to batches
    "mixed_collate": "delivery.collate",
    "prompt_collate": "sources.prompts",
    "collate_fn": "sources.prompts",
    "dpo_collate": "stores.collates",
    "grpo_collate": "stores.collates",
    "ResumableDistributedSampler": "delivery.sampler",
    # states
    "to_state": "progress.to_state",
    "merge_states": "progress.merge",
    # token stores, and datasets over them
    "DatasetFactory": "stores.dataset_factory",
    "BaseDataset": "stores.base_dataset",
    "SeqDataset": "stores.seq_dataset",
    "SFTDataset": "stores.sft_dataset",
    "DPODataset": "stores.record_datasets",
    "GRPODataset": "stores.record_datasets",
    "StoreFactory": "stores.factory",
    "Store": "stores.store",
    "H5Store": "stores.h5_store",
    "MegatronStore": "stores.megatron_store",
    "MmapStore": "stores.mmap_store",
    "StoreWriter": "stores.writer",
    "detect_format": "stores.files",
    # preparing stores
    "Pipeline": "prepare",
    "PrepareConfig": "prepare",
    # tensors of tokens
    "compute_position_id_with_mask": "text",
    "pad_sequence_to_length": "text",
    "postprocess_data": "text",
    # looking at it
    "describe": "view.tree",
    # errors
    "StreamdataError": "errors",
    "RecipeError": "errors",
    "ShardError": "errors",
    "SourceError": "errors",
    "StateError": "errors",
    "StoreError": "errors",
    "PrepareError": "prepare",
}
"""The public names by what they are for, and the module of each."""

# The order of `_MODULES`; written out, since type checkers read no other `__all__`.
__all__ = [  # noqa: RUF022  (grouped, not sorted)
    # recipes
    "instantiate_from_yaml",
    # mixtures, and what they are made of
    "MergedDataset",
    "named",
    "BlendableDataset",
    "make_blendable_dataset",
    # sources of records
    "JsonlIterableDataset",
    "MetaDistributedWebDataset",
    "ImageJsonlDataset",
    "RLHFDataset",
    "SFTChatDataset",
    "PreferenceDataset",
    # functions of records
    "TextJsonlProcessFnBuilder",
    "ImageJsonlProcessFnBuilder",
    "ImageTextPairProcessFnBuilder",
    "record_rng",
    # from samples to batches
    "mixed_collate",
    "prompt_collate",
    "collate_fn",
    "dpo_collate",
    "grpo_collate",
    "ResumableDistributedSampler",
    # states
    "to_state",
    "merge_states",
    # token stores, and datasets over them
    "DatasetFactory",
    "BaseDataset",
    "SeqDataset",
    "SFTDataset",
    "DPODataset",
    "GRPODataset",
    "StoreFactory",
    "Store",
    "H5Store",
    "MegatronStore",
    "MmapStore",
    "StoreWriter",
    "detect_format",
    # preparing stores
    "Pipeline",
    "PrepareConfig",
    # tensors of tokens
    "compute_position_id_with_mask",
    "pad_sequence_to_length",
    "postprocess_data",
    # looking at it
    "describe",
    # errors
    "StreamdataError",
    "RecipeError",
    "ShardError",
    "SourceError",
    "StateError",
    "StoreError",
    "PrepareError",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("torch-streamdata")
    if name not in _MODULES:
        raise AttributeError(f"module 'streamdata' has no attribute {name!r}")
    return getattr(import_module(f"streamdata.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
