"""A training loop that goes on under any number of ranks and workers, from where the last one stood.

First `python examples/make_demo_data.py demo_data`, then

    torchrun --nproc-per-node=2 examples/elastic_loop.py demo_data checkpoints 40
    torchrun --nproc-per-node=3 examples/elastic_loop.py demo_data checkpoints 30 --workers 1

Stop it whenever you like, and start it with other numbers: of an epoch nothing comes twice, and nothing is left out.
"""

import argparse
from itertools import count, islice
from pathlib import Path
from typing import Any

from torch import distributed
from torch.utils.data import DataLoader

from streamdata import MergedDataset, instantiate_from_yaml, load_states, mixed_collate, save_states, to_state

RECIPE = Path(__file__).parents[1] / "configs" / "demo.yaml"
BATCH_SIZE, SAVE_EVERY = 8, 10

Batch = list[dict[str, Any]]


def load(checkpoints: str) -> tuple[int, Any]:
    """The newest step that all ranks have saved, and their states; 0 and none where nothing was saved yet."""
    try:
        states = load_states(checkpoints)
    except FileNotFoundError:
        return 0, {}
    return states.step, states


def train(batch: Batch) -> None:
    """Stands for forward, backward and the optimizer's step."""


def run(dataset: MergedDataset, checkpoints: str, num_steps: int, num_workers: int) -> int:
    """Train for so many steps more, and save; return the last step."""
    last, states = load(checkpoints)  # the model's weights are loaded of this very step, too
    dataset.set_dataloader_states(states)
    dataset.verify_agreement()  # else a rank with another recipe or older states would train on, unnoticed
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=num_workers, collate_fn=mixed_collate)
    for step, batch in zip(count(last + 1), islice(loader, num_steps), strict=False):
        train(batch)
        states.update(to_state(batch))
        last = step
        if step % SAVE_EVERY == 0:
            save_states(checkpoints, states, step=step)
    if last % SAVE_EVERY:
        save_states(checkpoints, states, step=last)
    return last


def main() -> None:
    """One rank of the job, as torchrun starts it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("checkpoints")
    parser.add_argument("num_steps", type=int)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")
    dataset: MergedDataset = instantiate_from_yaml(RECIPE, variables={"data": arguments.data})
    last = run(dataset, arguments.checkpoints, arguments.num_steps, arguments.workers)
    print(f"rank {distributed.get_rank()} of {distributed.get_world_size()}: step {last} is saved")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
