"""Every record of a recipe, read once.

1. recipe → `recipe_sources` → its sources by name → `DataCheck.tasks` → shards, and runs of records
2. task → the source of it → its records, as far as they can be read → their images, and what functions make of them
3. record → `Findings` → faults by kind, with their places

- `data_check.py`: the sources of a recipe, their tasks, and what a process does with one.
- `data_records.py`: kinds of faults, and the records of a shard or a dataset, whose faults are noted on the way.
"""
