"""One YAML recipe in, one endless stream of training samples out: mixed by weight, sharded, resumable.

1. recipe → `instantiate_from_yaml` → a `MergedDataset` over a tree of sources
2. dataset → `torch.utils.data.DataLoader(…, collate_fn=mixed_collate)` → batches: lists of dicts
3. batch → `to_state` → states, plain JSON
4. states → `MergedDataset.set_dataloader_states` → the stream goes on where the trainer stood

Names are imported when they are first used, so that `import streamdata` costs nothing and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# `A as A` tells type checkers that `A` is public; they cannot read an `__all__` that is computed.
if TYPE_CHECKING:
    from streamdata.chats.chat_dataset import PreferenceDataset as PreferenceDataset
    from streamdata.chats.chat_dataset import SFTChatDataset as SFTChatDataset
    from streamdata.chats.prompts import RLHFDataset as RLHFDataset
    from streamdata.chats.prompts import collate_fn as collate_fn
    from streamdata.chats.prompts import prompt_collate as prompt_collate
    from streamdata.delivery.collate import GroupCollate as GroupCollate
    from streamdata.delivery.collate import mixed_collate as mixed_collate
    from streamdata.delivery.context_slice import context_slice as context_slice
    from streamdata.delivery.group_loader import GroupLoader as GroupLoader
    from streamdata.delivery.losses import by_name as by_name
    from streamdata.delivery.losses import loss_by_source as loss_by_source
    from streamdata.delivery.sampler import ResumableDistributedSampler as ResumableDistributedSampler
    from streamdata.delivery.stream_loader import StreamLoader as StreamLoader
    from streamdata.delivery.stream_state import StreamState as StreamState
    from streamdata.delivery.tensor_collate import Pad as Pad
    from streamdata.delivery.tensor_collate import TensorCollate as TensorCollate
    from streamdata.delivery.tensor_collate import to_float as to_float
    from streamdata.delivery.to_device import to_device as to_device
    from streamdata.errors import PrepareError as PrepareError
    from streamdata.errors import RecipeError as RecipeError
    from streamdata.errors import ShardError as ShardError
    from streamdata.errors import SourceError as SourceError
    from streamdata.errors import StaleAttempt as StaleAttempt
    from streamdata.errors import StateError as StateError
    from streamdata.errors import StoreError as StoreError
    from streamdata.errors import StreamdataError as StreamdataError
    from streamdata.ledger.client import LedgerClient as LedgerClient
    from streamdata.ledger.ledger import PromptLedger as PromptLedger
    from streamdata.ledger.prompts import Prompt as Prompt
    from streamdata.ledger.server import LedgerServer as LedgerServer
    from streamdata.mixing.merged import MergedDataset as MergedDataset
    from streamdata.mixing.merged import instantiate_from_yaml as instantiate_from_yaml
    from streamdata.prepare import Pipeline as Pipeline
    from streamdata.prepare import PrepareConfig as PrepareConfig
    from streamdata.run.seeds import record_rng as record_rng
    from streamdata.shards.tar.write import write_shards as write_shards
    from streamdata.sources.files.image_datasets import ImageFolderDataset as ImageFolderDataset
    from streamdata.sources.files.image_datasets import ImageJsonlDataset as ImageJsonlDataset
    from streamdata.sources.files.parquet import ParquetDataset as ParquetDataset
    from streamdata.sources.files.shard_datasets import CsvDataset as CsvDataset
    from streamdata.sources.files.shard_datasets import JsonlIterableDataset as JsonlIterableDataset
    from streamdata.sources.files.shard_datasets import MetaDistributedWebDataset as MetaDistributedWebDataset
    from streamdata.sources.foreign.named import named as named
    from streamdata.sources.functions.images import DecodeImages as DecodeImages
    from streamdata.sources.functions.images import ImageJsonlProcessFnBuilder as ImageJsonlProcessFnBuilder
    from streamdata.states.cursor import to_state as to_state
    from streamdata.states.joining import gather_states as gather_states
    from streamdata.states.joining import merge_states as merge_states
    from streamdata.states.lane_state import from_stateful as from_stateful
    from streamdata.states.loading import load_states as load_states
    from streamdata.states.saving import save_states as save_states
    from streamdata.stores.datasets.base_dataset import BaseDataset as BaseDataset
    from streamdata.stores.datasets.blendable import BlendableDataset as BlendableDataset
    from streamdata.stores.datasets.blendable import make_blendable_dataset as make_blendable_dataset
    from streamdata.stores.datasets.record_datasets import DatasetFactory as DatasetFactory
    from streamdata.stores.datasets.record_datasets import DPODataset as DPODataset
    from streamdata.stores.datasets.record_datasets import GRPODataset as GRPODataset
    from streamdata.stores.datasets.record_datasets import dpo_collate as dpo_collate
    from streamdata.stores.datasets.record_datasets import grpo_collate as grpo_collate
    from streamdata.stores.datasets.window_datasets import SeqDataset as SeqDataset
    from streamdata.stores.datasets.window_datasets import SFTDataset as SFTDataset
    from streamdata.stores.factory import StoreFactory as StoreFactory
    from streamdata.stores.factory import detect_format as detect_format
    from streamdata.stores.h5_store import H5Store as H5Store
    from streamdata.stores.megatron_store import MegatronStore as MegatronStore
    from streamdata.stores.mmap_store import MmapStore as MmapStore
    from streamdata.stores.store import Store as Store
    from streamdata.stores.writer import StoreWriter as StoreWriter
    from streamdata.text.grouping import GroupByLength as GroupByLength
    from streamdata.text.image_text_pairs import (
        ImageTextPairProcessFnBuilder as ImageTextPairProcessFnBuilder,
    )
    from streamdata.text.lookahead import PackTokens as PackTokens
    from streamdata.text.packing import TextJsonlProcessFnBuilder as TextJsonlProcessFnBuilder
    from streamdata.text.plan import Cost as Cost
    from streamdata.text.truncation import compute_position_id_with_mask as compute_position_id_with_mask
    from streamdata.text.truncation import pad_sequence_to_length as pad_sequence_to_length
    from streamdata.text.truncation import postprocess_data as postprocess_data
    from streamdata.tools.trace.metrics import metrics as metrics
    from streamdata.tools.view.totals import report as report
    from streamdata.tools.view.tree import describe as describe

_MODULES = {
    # recipes
    "instantiate_from_yaml": "mixing.merged",
    # mixtures, and what they are made of
    "MergedDataset": "mixing.merged",
    "named": "sources.foreign.named",
    "BlendableDataset": "stores.datasets.blendable",
    "make_blendable_dataset": "stores.datasets.blendable",
    # sources of records
    "JsonlIterableDataset": "sources.files.shard_datasets",
    "MetaDistributedWebDataset": "sources.files.shard_datasets",
    "ParquetDataset": "sources.files.parquet",
    "ImageJsonlDataset": "sources.files.image_datasets",
    "ImageFolderDataset": "sources.files.image_datasets",
    "CsvDataset": "sources.files.shard_datasets",
    "RLHFDataset": "chats.prompts",
    "SFTChatDataset": "chats.chat_dataset",
    "PreferenceDataset": "chats.chat_dataset",
    # functions of records
    "TextJsonlProcessFnBuilder": "text.packing",
    "DecodeImages": "sources.functions.images",
    "ImageJsonlProcessFnBuilder": "sources.functions.images",
    "ImageTextPairProcessFnBuilder": "text.image_text_pairs",
    "PackTokens": "text.lookahead",
    "GroupByLength": "text.grouping",
    "Cost": "text.plan",
    "record_rng": "run.seeds",
    # from samples to batches
    "mixed_collate": "delivery.collate",
    "StreamLoader": "delivery.stream_loader",
    "StreamState": "delivery.stream_state",
    "to_device": "delivery.to_device",
    "GroupLoader": "delivery.group_loader",
    "TensorCollate": "delivery.tensor_collate",
    "Pad": "delivery.tensor_collate",
    "to_float": "delivery.tensor_collate",
    "GroupCollate": "delivery.collate",
    "context_slice": "delivery.context_slice",
    "loss_by_source": "delivery.losses",
    "by_name": "delivery.losses",
    "prompt_collate": "chats.prompts",
    "collate_fn": "chats.prompts",
    "dpo_collate": "stores.datasets.record_datasets",
    "grpo_collate": "stores.datasets.record_datasets",
    "ResumableDistributedSampler": "delivery.sampler",
    # prompts that finish out of order
    "PromptLedger": "ledger.ledger",
    "Prompt": "ledger.prompts",
    "LedgerServer": "ledger.server",
    "LedgerClient": "ledger.client",
    "StaleAttempt": "errors",
    # states
    "to_state": "states.cursor",
    "merge_states": "states.joining",
    "save_states": "states.saving",
    "load_states": "states.loading",
    "gather_states": "states.joining",
    "from_stateful": "states.lane_state",
    # token stores, and datasets over them
    "DatasetFactory": "stores.datasets.record_datasets",
    "BaseDataset": "stores.datasets.base_dataset",
    "SeqDataset": "stores.datasets.window_datasets",
    "SFTDataset": "stores.datasets.window_datasets",
    "DPODataset": "stores.datasets.record_datasets",
    "GRPODataset": "stores.datasets.record_datasets",
    "StoreFactory": "stores.factory",
    "Store": "stores.store",
    "H5Store": "stores.h5_store",
    "MegatronStore": "stores.megatron_store",
    "MmapStore": "stores.mmap_store",
    "StoreWriter": "stores.writer",
    "detect_format": "stores.factory",
    # writing shards
    "write_shards": "shards.tar.write",
    # preparing stores
    "Pipeline": "prepare",
    "PrepareConfig": "prepare",
    # tensors of tokens
    "compute_position_id_with_mask": "text.truncation",
    "pad_sequence_to_length": "text.truncation",
    "postprocess_data": "text.truncation",
    # looking at it
    "describe": "tools.view.tree",
    "report": "tools.view.totals",
    "metrics": "tools.trace.metrics",
    # errors
    "StreamdataError": "errors",
    "RecipeError": "errors",
    "ShardError": "errors",
    "SourceError": "errors",
    "StateError": "errors",
    "StoreError": "errors",
    "PrepareError": "errors",
}
"""The public names by what they are for, and the module of each."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("torch-streamdata")
    if name not in _MODULES:
        raise AttributeError(f"module 'streamdata' has no attribute {name!r}")
    return getattr(import_module(f"streamdata.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
