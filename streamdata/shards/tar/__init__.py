"""Tar archives of the webdataset convention: `members → records`, with fields from sidecars.

| file | what is in it |
|---|---|
| `headers.py` | bytes → members |
| `records.py` | bytes of an indexed record → its fields (`plain_record`); members → records, for the index |
| `sidecar.py` | JSON lines that add fields to records |
| `shards.py` | runs of records → windows → records |
| `write.py` | samples → shards, sidecars and a manifest |
"""
