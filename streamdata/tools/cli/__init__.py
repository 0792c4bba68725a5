"""The `streamdata` command.

1. `main`: arguments → options (`options`: those of several commands); imports nothing heavy, so that `--help` is fast
2. `check`: recipe → its problems; `--resume`: → functions that a resume does not repeat
3. `run`: recipe → tree, live line, summary (`ticker` shows the line, `interrupt` ends it)
4. `prepare`: documents → a store, and a look into it (`prepare_app` has the commands and their options, `tokens_text`
   shows tokens)
5. `messages`: how all commands end
"""

__all__: list[str] = []
