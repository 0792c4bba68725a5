"""Bytes from anywhere: `url, version, range → bytes`, or a file from its start.

| file | what is in it |
|---|---|
| `storage.py` | urls and paths, versions of files, ranges of local and remote ones |
| `one_pass.py` | files that are read once, mostly forward |
| `streams.py` | files that are read from their start, decompressed; the output of commands |
| `signatures.py` | what a file is by its first bytes |
| `file_cache.py` | locks, and files made once by one process of a node |
| `remote/` | object stores and web servers |
| `cache/` | pages of remote files on the node's disk |
"""
