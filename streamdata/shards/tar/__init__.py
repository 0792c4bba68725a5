"""Tar archives of the webdataset convention: `members → records`, with fields from sidecars.

| file | what is in it |
|---|---|
| `headers.py` | bytes → members |
| `records.py` | members → records; the index of a shard |
| `sidecar.py` | JSON lines that add fields to records |
| `shards.py` | runs of records → windows → records |
| `write.py` | samples → shards, sidecars and a manifest |
"""
