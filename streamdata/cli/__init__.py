"""The `streamdata` command.

1. `main`: arguments → options; imports nothing heavy, so that `--help` is fast
2. `check`: recipe → its problems; `--resume`: → functions that a resume does not repeat
3. `run`: recipe → tree, live line, summary (`mixture` builds it, `ticker` shows the line, `interrupt` ends it)
"""

__all__ = ["check", "interrupt", "main", "mixture", "run", "ticker"]
