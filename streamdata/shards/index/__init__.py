"""Indexes: `shards → where each record lies`; manifests: `folder → its shards with all their indexes, in one file`.

| file | what is in it |
|---|---|
| `index_file.py` | the format of an index, and where one is published |
| `indexing.py` | finding indexes, and building those that are missing, many at a time |
| `manifest.py` | the format of a manifest, and what one says of files |
| `manifest_file.py`, `manifest_pages.py` | manifests as they are read, local and remote ones |
| `make_manifest.py` | which files a manifest is to list, and making it |
"""
