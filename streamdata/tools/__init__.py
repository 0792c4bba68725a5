"""Answers to questions about a recipe, a run or its data, and the command that gives them.

| folder | what it answers |
|---|---|
| `cli` | the `streamdata` command, which calls the others |
| `init` | a first recipe of files, and the schema of recipes |
| `data_check` | is a record of the recipe's sources damaged? |
| `plan` | what will a run read of each source? |
| `profile` | where does the time go? |
| `show` | what do samples look like? |
| `trace` | which records were in a step, and when does one come again? |
| `view` | what has a run read so far, and does it resume exactly? |
"""
