"""Sources over files: `path → shards with an index, or read from their start → records`.

- `shard_source.py`: `BlockSource`, shards with an index, in blocks; `ShardDataset`, what a recipe names
- `sequential_source.py`: `SequentialSource`, shards that can only be read from their start
- `shard_datasets.py`: CSV, JSONL and tars by the names that a recipe has for them
- `parquet.py`: row groups, each decoded once
- `image_datasets.py`: images in folders, or named by lines
"""
