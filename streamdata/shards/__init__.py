"""Shards: `patterns → urls → indexes → windows of records`.

| file | what is in it |
|---|---|
| `listing.py`, `urls.py` | braces, globs, folders and manifests → sorted urls of shards |
| `index/` | shards → where each record lies; manifests, which list shards |
| `readers.py` | the contract of all readers: shards → windows → records |
| `indexed.py` | shards with an index each, whose records are read by their numbers |
| `sequential.py` | compressed and piped shards, which are read from their start |
| `tar/`, `jsonl/`, `parquet/` | the formats |
| `ahead/` | which bytes of the next windows are asked for before they are needed |
"""

__all__ = ["jsonl", "readers", "sequential", "tar", "urls"]
