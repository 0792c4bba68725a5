"""torchtitan's loader protocol: an iterable of (inputs, labels) that is `Stateful`, under one key of its checkpoints.

    torchrun --nproc-per-node=2 examples/trainers/titan_loader.py run --steps 20

A job's config names `TitanLoader.Config` as its dataloader; torchtitan builds it, iterates, saves and loads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tiny import BATCH_SIZE, TinyModel, parsed, training_set
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torchtitan.components.dataloader import BaseDataLoader

from streamdata import StreamLoader, StreamState


class TitanLoader(BaseDataLoader):
    """A StreamLoader as torchtitan takes it.

    Its ranks of tensor, pipeline and context parallelism read the same samples as those that they serve.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What a job's config may set."""

        num_workers: int = 2

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_: Any) -> None:
        self.loader = StreamLoader(training_set(), local_batch_size, num_workers=config.num_workers)
        self.loader.dataset.set_data_parallel(dp_world_size, dp_rank)
        self.state = StreamState(self.loader)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        return (({"input": batch["input_ids"], "row": batch["row"]}, batch["labels"]) for batch in self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state.load_state_dict(state_dict)


if __name__ == "__main__":  # what torchtitan's trainer does with a loader
    arguments = parsed(__doc__, steps=20)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    loader = TitanLoader.Config().build(dp_rank=rank, dp_world_size=size, local_batch_size=BATCH_SIZE)
    model, path = TinyModel(arguments.folder), Path(arguments.folder, "checkpoint")
    if path.exists():
        checkpoint.load({"dataloader": loader}, checkpoint_id=path)
    for inputs, labels in islice(loader, arguments.steps):
        model(inputs["input"], inputs["row"], labels)["loss"].backward()
    checkpoint.save({"dataloader": loader}, checkpoint_id=path)
    distributed.destroy_process_group()
