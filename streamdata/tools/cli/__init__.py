"""The `streamdata` command: `arguments → options → what a command does → text, JSON or HTML, and an exit code`.

- `main`: all commands
- `options`: options of several commands, and the recipe that they give
- `messages`: how commands end, signals, lines and bars of progress
- `init`: data as it lies → a recipe; `schema`: what editors know of recipes
- `check`: recipe → its problems, by `recipe_files` those of the files that it names, too
- `runs`: recipe → `plan`, `run`, `profile`
- `show`: recipe or store → samples
- `states`: states → `state`, `trace`
- `prepare`: documents → a store; `verify`
- `index`: shards → a manifest

A command imports what it does when it runs: `--help` imports neither torch nor NumPy.
"""
