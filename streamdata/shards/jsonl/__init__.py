"""JSON Lines and CSV: `bytes → lines → rows → records`.

| file | what is in it |
|---|---|
| `lines.py` | bytes → lines, or elements of an array; the index of a shard |
| `rows.py` | a line → a dict, or what is wrong with it |
| `shards.py` | runs of rows → windows → records |
| `csv_rows.py` | CSV files from their start |
"""
