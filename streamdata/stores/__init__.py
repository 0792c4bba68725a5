"""Stores: tokenized arrays on disk, and datasets over them.

1. records → `StoreWriter` → shards: bin, h5 or Megatron's
2. a directory of shards, a file or a Megatron prefix → `open_store` (`detect_format`, `StoreFactory`) → `Store`: keys,
   values by range, records
3. store → `datasets` → windows, records, or the samples of Megatron-Core
4. map-style datasets, weights → `blend` → one map-style dataset

Every format is read as `segments`: per key a list of arrays, with runs of values in them: records, rows, documents.
"""

__all__ = ["blend", "datasets", "factory", "verify", "writer"]
