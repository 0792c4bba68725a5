"""What a run reads, in Weights & Biases: shares, epochs, tokens, drops and times of each source.

First `python examples/make_demo_data.py demo_data` and `pip install wandb`, then

    python examples/log_to_wandb.py demo_data            # WANDB_MODE=offline keeps it on this machine
"""

import sys
from itertools import islice

import wandb

from streamdata import StreamLoader, gather_states, instantiate_from_yaml, mixed_collate, report

NUM_BATCHES, LOG_EVERY = 40, 10


def main(data: str) -> None:
    """Train for some batches, and log."""
    dataset = instantiate_from_yaml("configs/demo.yaml", variables={"data": data})
    loader = StreamLoader(dataset, batch_size=16, num_workers=2, collate=mixed_collate)
    with wandb.init(project="streamdata") as run:
        for step, _ in enumerate(islice(loader, NUM_BATCHES), 1):
            # forward, backward, and the optimizer's step
            if step % LOG_EVERY == 0:
                states = gather_states(loader.state_dict())  # of all ranks: called on each, logged on one
                numbers = {**report(states), **loader.times()}
                run.log({f"data/{name}": value for name, value in numbers.items()}, step=step)


if __name__ == "__main__":
    main(*sys.argv[1:])
