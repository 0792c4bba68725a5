"""What a run reads, as curves in TensorBoard: shares, epochs, tokens, drops and times of each source.

First `python examples/make_demo_data.py demo_data` and `pip install tensorboard`, then

    python examples/log_to_tensorboard.py demo_data runs
    tensorboard --logdir runs
"""

import sys
from itertools import islice

from torch.utils.tensorboard import SummaryWriter

from streamdata import StreamLoader, gather_states, instantiate_from_yaml, mixed_collate, report

NUM_BATCHES, LOG_EVERY = 40, 10


def main(data: str, directory: str) -> None:
    """Train for some batches, and log."""
    dataset = instantiate_from_yaml("configs/demo.yaml", variables={"data": data})
    loader = StreamLoader(dataset, batch_size=16, num_workers=2, collate=mixed_collate)
    with SummaryWriter(directory) as writer:
        for step, _ in enumerate(islice(loader, NUM_BATCHES), 1):
            # forward, backward, and the optimizer's step
            if step % LOG_EVERY == 0:
                states = gather_states(loader.state_dict())  # of all ranks: called on each, logged on one
                for name, value in {**report(states), **loader.times()}.items():
                    writer.add_scalar(f"data/{name}", value, step)


if __name__ == "__main__":
    main(*sys.argv[1:])
