"""The `streamdata` command: `arguments → options → what a command does → text, JSON or HTML, and an exit code`.

- `main`: all commands
- `options`: options of several commands, and the recipe that they give
- `messages`: how commands end, signals, lines and bars of progress
- `recipes`: data as it lies → `init` → a recipe → `check` → its problems, by `recipe_files` those of the files that it
  names, too; `schema`
- `runs`: recipe → `plan`, `run`, `profile`; states → `state`, `trace`
- `show`: recipe or store → samples
- `data`: documents → `prepare` → a store → `verify`; shards → `index` → a manifest

A command imports what it does when it runs: `--help` imports neither torch nor NumPy.
"""
