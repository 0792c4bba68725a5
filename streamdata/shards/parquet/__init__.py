"""Parquet and Arrow files: `files → row groups, decoded → rows`.

| file | what is in it |
|---|---|
| `file.py` | one parquet file, or Arrow stream that `save_to_disk` wrote: its row groups, decoded |
| `values.py` | Arrow's columns → Python's values |
| `shards.py` | row groups of many files, kept decoded within a bound → windows → records |
| `rows.py`, `stored_rows.py` | files → files of rows in the cache → any row by its number |
"""
