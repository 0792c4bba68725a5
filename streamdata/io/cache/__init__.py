"""The page cache: `url, version, range → pages on the disk of a node → bytes`, shared by its processes.

| file | what is in it |
|---|---|
| `cached.py` | the caches of this process, by the settings of sources |
| `page_cache.py` | what is read from pages, and what is fetched |
| `room.py` | what its processes agree on: how full it is, who fetches a page, what is in use |
| `shard_file.py` | a shard's file: pages that are written once, and checked when they are read from a map |
"""
