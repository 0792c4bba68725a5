"""Stores: tokenized arrays on disk, and windows over them.

1. records → `StoreWriter` → shards: bin, h5 or Megatron's
2. a directory of shards, a file or a Megatron prefix → `open_store` (`detect_format`, `StoreFactory`) → `Store`: keys,
   values by range, records
3. store → `DatasetFactory` → windows (`SeqDataset`, `SFTDataset`) or records (`DPODataset`, `GRPODataset`); by
   `compat="megatron"` the samples of Megatron-Core (`MegatronSamples`)
4. records → `dpo_collate`, `grpo_collate` → padded batches

Every format is read as `segments`: per key a list of arrays, with `bounds` for records in them.
"""

__all__ = ["dataset_factory", "factory", "files", "verify", "writer"]
