"""Reading ahead: `planned windows → loads → requests → bytes in memory`.

| file | what is in it |
|---|---|
| `spans.py` | where records lie in files; spans that are read at once, now |
| `windows.py` | windows that are planned, and the loads of requests that bring their bytes |
| `read_ahead.py` | what each source of a lane reads next, in one bound of memory; whether stores limit the lane |
"""
