"""Shards: bytes ↔ records.

1. `urls`: what a recipe names (braces, globs, directories, lists) → sorted urls of shards.
2. `build`, `indexing`: shards → index files beside them or in the cache (`tar_index`, `sidecar`, `jsonl_index`,
   `record_counts`), by one process of a node. `make_manifest`: folders → manifests, which are lists of shards with all
   their indexes (`inventory`, their files; `manifest`, the format; `manifest_file`, read by chunks); `write_shards`:
   samples → shards with one.
3. `tar`, `jsonl`: runs of records → windows → records, by their indexes.
4. `sequential`: compressed and piped shards → records, from their start.
5. `upcoming`: windows that come (`coming`) → portions (`portion`), of all sources by due time (`read_ahead`) → requests
   (`coalesced`, `fetching`) → memory.
6. `parquet_file`: a parquet file → row groups in bounded batches. `parquet`: row groups → windows (`parquet_window`) →
   records. `parquet_rows`: files → files of rows in the cache (`stored_rows`, `file_cache`) → rows by their numbers.
7. `csv_rows`: CSV → records, from the start of a file.

`readers` is the contract that 3 and 4 fulfil.
"""

__all__ = ["jsonl", "readers", "sequential", "tar", "urls"]
