"""Facts of this process, and the numbers that follow from them alone.

1. environment → `DataParallel`, `Lane` → who reads
2. names and seeds → `stable_seed` → 63-bit seeds, the same on every machine
3. seed and size → `Permutation` → an order that is computed, never stored; `shuffled` → one of few enough to be listed;
   `hashes_of` → numbers without an order
4. temporary file → `publish` → what readers see whole or not at all
5. function and tasks → `processes`, or in a command `forks` → results, from other processes that end with this one
6. key → `recent` → what a thread keeps for its next reading: open files, memory
7. what makes it → `PerProcess` → a value that each process has for itself, over forks
8. samples of a lane → `lane_link`, `traffic` → how the lane began, and what its process asked of stores, to the trainer
"""

from streamdata.run.permutation import Permutation, hashes_of, shuffled
from streamdata.run.seeds import stable_seed
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
