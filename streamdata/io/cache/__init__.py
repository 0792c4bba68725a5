"""The page cache: `url, version, range → pages on the disk of a node → bytes`, shared by its processes.

| file | what is in it |
|---|---|
| `cached.py` | the caches of this process, by the settings of sources |
| `page_cache.py` | what is read from pages, and what is fetched |
| `account.py` | how full the cache is, and which pages make room for others |
| `pages.py` | the files, written once and checked when they are read |
"""
