"""Facts of this process, and the numbers that follow from them alone.

1. environment → `DataParallel`, `Lane` → who reads
2. names → seeds → orders
3. function and tasks → other processes → results

- `topology.py`: who reads: `DataParallel`, `Lane`; its share of a node's connections
- `seeds.py`: `stable_seed`, the same on every machine; `Permutation`, an order that is computed, never stored;
  `record_rng`, a random generator of one record
- `per_process.py`: `PerProcess`, a value that each process has for itself, over forks; `Recent` and `ReadBuffer`, open
  files and memory that a thread keeps for its next reading; `shared_numbers`, what processes share
- `processes.py`: `processes`, or in a command `forks`, do tasks and end with this process
- `trainer.py`: a worker ends with the trainer that it works for
- `lane_link.py`: how a lane began, and what its process asked of stores, for the trainer
- `stalls.py`: records that take longer than `stall_s` are named with the reader's stack
- `publish.py`: files that readers see whole or not at all
"""

from streamdata.run.seeds import Permutation, hashes_of, shuffled, stable_seed
from streamdata.run.topology import MAX_RANKS, MAX_WORKERS, DataParallel, Lane, find_data_parallel

__all__ = [
    "MAX_RANKS",
    "MAX_WORKERS",
    "DataParallel",
    "Lane",
    "Permutation",
    "find_data_parallel",
    "hashes_of",
    "shuffled",
    "stable_seed",
]
