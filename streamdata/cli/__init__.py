"""The `streamdata` command.

1. `main`: arguments → options; imports nothing heavy, so that `--help` is fast
2. `check`: recipe → its problems; `--resume`: → functions that a resume does not repeat
3. `run`: recipe → tree, live line, summary (`mixture` builds it, `ticker` shows the line, `interrupt` ends it)
4. `prepare`, `inspect`, `verify`: documents → a store, and looking into it (`prepare_app` has their options,
   `tokens_text` shows tokens); `messages`: how all commands end
"""

__all__ = [
    "check",
    "inspect",
    "interrupt",
    "main",
    "messages",
    "mixture",
    "prepare",
    "prepare_app",
    "run",
    "ticker",
    "tokens_text",
    "verify",
]
