"""Parquet and Arrow files: `files → row groups → decoded batches → rows`.

| file | what is in it |
|---|---|
| `file.py`, `pages.py` | one parquet file, in batches of a bounded size |
| `row_groups.py` | the row groups of many files; Arrow streams that `save_to_disk` wrote |
| `run_decoder.py` | runs of rows, decoded once, at once or ahead in a thread |
| `values.py` | Arrow's columns → Python's values |
| `shards.py` | row groups → windows → records |
| `rows.py`, `stored_rows.py` | files → files of rows in the cache → any row by its number |
"""
