import multiprocessing
import os
import pickle
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from examples import elastic_loop
from streamdata import MergedDataset, load_states
from tests.ranks import CONTEXT, LIMIT_S, serve
from tests.streams import Numbers

Record = tuple[str, int]


def make() -> MergedDataset:
    """A finite mixture."""
    return MergedDataset([Numbers("a", 211, 2), Numbers("b", 89)], cyclic=False, stop="all_exhausted", seed=3)


def train(checkpoints: str, num_steps: int, rank: int = 0) -> list[Record]:
    """What a rank trains on."""
    seen: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elastic_loop, "train", seen.extend)
        elastic_loop.run(make(), checkpoints, num_steps, 0)
    return [(sample["__datasetname__"], sample["value"]) for sample in seen]


def main_as_single_rank(data: str, checkpoints: str) -> None:
    """What torchrun does."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    sys.argv = ["elastic_loop.py", data, checkpoints, "3", "--workers", "0"]
    elastic_loop.main()


def finish(processes: list[multiprocessing.process.BaseProcess]) -> None:
    """Run processes that must end well."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def test_other_ranks_go_on_where_the_last_ones_stood(tmp_path: Path) -> None:
    """Two ranks, then one: what they train on is the epoch; each step that was saved can be loaded."""
    checkpoints = str(tmp_path / "checkpoints")
    work = partial(train, checkpoints, 12)
    finish([CONTEXT.Process(target=serve, args=(tmp_path, work, rank, 2)) for rank in range(2)])
    before = [record for rank in range(2) for record in pickle.loads((tmp_path / str(rank)).read_bytes())]
    assert len(before) == 2 * 12 * elastic_loop.BATCH_SIZE
    assert load_states(checkpoints, step=10).step == 10
    after = train(checkpoints, 1000)
    epoch = [(name, value) for name, size in (("a", 211), ("b", 89)) for value in range(size)]
    assert Counter(before + after) == Counter(epoch)


def test_the_script_runs(tmp_path: Path, demo_data: Path) -> None:
    """Over the demo's recipe, as torchrun starts it."""
    finish([CONTEXT.Process(target=main_as_single_rank, args=(str(demo_data), str(tmp_path)))])
    assert load_states(tmp_path).step == 3
