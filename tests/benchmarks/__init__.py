"""The figures to reach: `python -m tests.benchmarks` shows each beside its limit or its peer, from the same run.

1. `data` writes shards and rows once, under `build/bench/`
2. a module per kind of work → `rows(directory, scale)` → `Row`s
3. `__main__` → one table, printed and in `build/bench/table.md` and `.json`, with the rows in which a peer is ahead

What peers do that need an environment of their own is in `peer_loops` and `peer_reader`, which `peers` calls.

No timed tests: a busy machine must not fail them. What is compared runs by turns, and of each the best time counts.
"""
