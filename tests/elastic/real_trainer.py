"""One rank of a real job: it goes on from the last step that all ranks have saved, and logs what it delivers.

Under torchrun's agent; `tests.elastic.torchrun_soak` starts it. The ranks step together; the job ends when none
of them has a batch.
"""

import json
import os
import time
from itertools import count
from pathlib import Path

import torch
from torch import distributed
from torch.utils.data import DataLoader

from streamdata import MergedDataset, mixed_collate, to_state
from tests.elastic import checkpoints
from tests.elastic.real_data import open_mixture, tokens_of_real

STEPS_PER_LEG = 1_000_000
"""A leg counts its steps on from here, so that what an earlier leg had begun to save is never taken for its own."""
_SAVE_EVERY = 3


def main(folder: str, leg: str, num_workers: str, weights: str) -> None:
    """Deliver until all is delivered, or until somebody kills this process."""
    distributed.init_process_group("gloo")
    rank, home = distributed.get_rank(), Path(folder)
    (home / f"pid-{rank}").write_text(str(os.getpid()))
    dataset = open_mixture(home, json.loads(weights))
    _, states = checkpoints.load(home / "steps")
    dataset.set_dataloader_states(states)
    dataset.verify_agreement()
    with (home / f"log-{leg}-{rank}.jsonl").open("w", buffering=1) as log:
        _train(dataset, states, int(num_workers), int(leg) * STEPS_PER_LEG, log, home)
    (home / f"ended-{leg}-{rank}").touch()
    distributed.destroy_process_group()


def _train(dataset: MergedDataset, states, num_workers: int, first: int, log, home: Path) -> None:
    context = "fork" if num_workers else None
    loader = DataLoader(dataset, 4, num_workers=num_workers, collate_fn=mixed_collate, multiprocessing_context=context)
    batches = iter(loader)
    for step in count(first + 1):
        batch = next(batches, None)
        is_over = _none_has_one(batch)
        if batch is not None:
            states.update(to_state(batch))
            tokens = [token for sample in batch for token in tokens_of_real(sample)]
            log.write(json.dumps({"step": step, "tokens": tokens}) + "\n")
        if is_over or step % _SAVE_EVERY == 0:
            checkpoints.save(home / "steps", step, states)
        if is_over:
            return
        time.sleep(0.004)  # as a model would take, or a leg is over before it can be killed


def _none_has_one(batch: object) -> bool:
    held = torch.tensor(int(batch is not None))
    distributed.all_reduce(held)
    return not held
