"""Stores: tokenized arrays on disk, and datasets over them.

1. records → `writer`: `StoreWriter` → `spool` → shards: bin, h5 or Megatron's
2. a directory of shards, a file or a Megatron prefix → `factory`: `detect_format`, `StoreFactory` → a `Store`
3. `store`: keys, values by range, records; of `mmap_store`, `h5_store`, `megatron_store` or `token_files`
4. store → `datasets` → windows, records, the samples of Megatron-Core, or a blend of several

Every format is read as `segments`: per key a list of arrays, with runs of values in them: records, rows, documents.
`stored_values` reads an array out of its file, checked by its sums; `dtypes` says which keys and numbers there are.
"""

__all__ = ["datasets", "factory", "writer"]
