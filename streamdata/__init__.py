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
    "BaseDataset": "stores.base_dataset",
    "BlendableDataset": "mixing.blendable",
    "DPODataset": "stores.record_datasets",
    "DatasetFactory": "stores.dataset_factory",
    "GRPODataset": "stores.record_datasets",
    "H5Store": "stores.h5_store",
    "ImageJsonlDataset": "sources.image_jsonl",
    "ImageJsonlProcessFnBuilder": "sources.process_image",
    "ImageTextPairProcessFnBuilder": "sources.process_image",
    "JsonlIterableDataset": "sources.jsonl",
    "MegatronStore": "stores.megatron_store",
    "MergedDataset": "mixing.merged",
    "MetaDistributedWebDataset": "sources.webdataset",
    "MmapStore": "stores.mmap_store",
    "Pipeline": "prepare",
    "PreferenceDataset": "sources.chats",
    "PrepareConfig": "prepare",
    "PrepareError": "prepare",
    "RLHFDataset": "sources.prompts",
    "RecipeError": "errors",
    "ResumableDistributedSampler": "delivery.sampler",
    "SFTChatDataset": "sources.chats",
    "SFTDataset": "stores.sft_dataset",
    "SeqDataset": "stores.seq_dataset",
    "ShardError": "errors",
    "SourceError": "errors",
    "StateError": "errors",
    "Store": "stores.store",
    "StoreError": "errors",
    "StoreFactory": "stores.factory",
    "StoreWriter": "stores.writer",
    "StreamdataError": "errors",
    "TextJsonlProcessFnBuilder": "sources.process_text",
    "collate_fn": "sources.prompts",
    "compute_position_id_with_mask": "text",
    "describe": "view.tree",
    "detect_format": "stores.files",
    "dpo_collate": "stores.collates",
    "grpo_collate": "stores.collates",
    "instantiate_from_yaml": "recipe",
    "make_blendable_dataset": "mixing.blendable",
    "merge_states": "progress.merge",
    "mixed_collate": "delivery.collate",
    "named": "sources.named",
    "pad_sequence_to_length": "text",
    "postprocess_data": "text",
    "prompt_collate": "sources.prompts",
    "record_rng": "sources.randomness",
    "to_state": "progress.to_state",
}

__all__ = [
    "BaseDataset",
    "BlendableDataset",
    "DPODataset",
    "DatasetFactory",
    "GRPODataset",
    "H5Store",
    "ImageJsonlDataset",
    "ImageJsonlProcessFnBuilder",
    "ImageTextPairProcessFnBuilder",
    "JsonlIterableDataset",
    "MegatronStore",
    "MergedDataset",
    "MetaDistributedWebDataset",
    "MmapStore",
    "Pipeline",
    "PreferenceDataset",
    "PrepareConfig",
    "PrepareError",
    "RLHFDataset",
    "RecipeError",
    "ResumableDistributedSampler",
    "SFTChatDataset",
    "SFTDataset",
    "SeqDataset",
    "ShardError",
    "SourceError",
    "StateError",
    "Store",
    "StoreError",
    "StoreFactory",
    "StoreWriter",
    "StreamdataError",
    "TextJsonlProcessFnBuilder",
    "collate_fn",
    "compute_position_id_with_mask",
    "describe",
    "detect_format",
    "dpo_collate",
    "grpo_collate",
    "instantiate_from_yaml",
    "make_blendable_dataset",
    "merge_states",
    "mixed_collate",
    "named",
    "pad_sequence_to_length",
    "postprocess_data",
    "prompt_collate",
    "record_rng",
    "to_state",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("torch-streamdata")
    if name not in _MODULES:
        raise AttributeError(f"module 'streamdata' has no attribute {name!r}")
    return getattr(import_module(f"streamdata.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
