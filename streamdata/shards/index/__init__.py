"""Indexes: `shards → where each record lies`; manifests: `folder → its shards, in one list`.

| file | what is in it |
|---|---|
| `index_file.py` | the format of an index, and reading rows of one, on a disk or in a store |
| `indexing.py` | finding indexes, and building those that are missing, many at a time |
| `manifest.py` | the format of a manifest, finding manifests, and what they say of shards |
| `make_manifest.py` | which files a manifest is to list, and making it |
"""
