"""Reading ahead: `planned windows → requests by due time → bytes in memory`.

| file | what is in it |
|---|---|
| `spans.py` | where records lie in files; spans that are read at once, now |
| `windows.py` | windows that are planned, their requests, and what of them is held at once |
| `upcoming.py` | what a source of a lane reads next |
| `read_ahead.py` | the requests of all lanes of a process, by due time, within one bound of memory |
"""
