"""torchtitan's loader protocol: batches of packed rows, with shifted labels and positions; `Stateful`, under one key.

    torchrun --nproc-per-node=2 examples/trainers/titan_loader.py run --steps 20

A job's config names `TitanLoader.Config` as its dataloader; torchtitan builds it, iterates, saves and loads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tiny import TinyModel, note, parsed, training_set
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.nn.functional import cross_entropy, pad

from streamdata import PackTokens, Pad, StreamLoader, StreamState, TensorCollate

try:  # The main branch, since its own loader reads by Grain: a batch is one row of tokens.
    from torchtitan.components.data.loader import BaseDataLoader

    FLAT = True
except ModuleNotFoundError:  # 0.3.0
    from torchtitan.components.dataloader import BaseDataLoader

    FLAT = False


def document(row: dict[str, Any]) -> dict[str, Tensor]:
    """Labels are the token after each one, since torchtitan does not shift them; -100 where none follows."""
    return {"input_ids": row["input_ids"], "labels": pad(row["labels"][1:], (0, 1), value=-100)}


class TitanLoader(StreamState, BaseDataLoader):
    """A StreamLoader as torchtitan takes it, with the states of all ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What a job's config may set."""

        num_workers: int = 2

    def __init__(self, config: Config, *, dp_rank: int, dp_world_size: int, **sizes: Any) -> None:
        length = sizes["max_context_length" if FLAT else "seq_len"]
        num_tokens = sizes["num_tokens_per_batch"] if FLAT else sizes["local_batch_size"] * length
        if num_tokens % length:
            raise ValueError(
                f"TitanLoader: expected batches of whole rows of {length} tokens, got batches of {num_tokens} tokens\n"
                "  Make num_tokens_per_microbatch_per_dp_rank a multiple of max_context_length."
            )
        # A lookahead for little data; the default fills rows better.
        dataset = training_set(single_process_fn=document, process_fn=PackTokens(length, lookahead=16))
        dataset.set_data_parallel(dp_world_size, dp_rank)  # alike on all tensor, pipeline and context parallel ranks
        fills = {"input_ids": 0, "labels": -100, "position_ids": -1}
        collate = TensorCollate({name: Pad(fill, multiple_of=length) for name, fill in fills.items()}, default="drop")
        self.loader = StreamLoader(dataset, num_tokens // length, config.num_workers, collate)
        super().__init__(self.loader)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for batch in self.loader:
            inputs, labels, positions = batch["input_ids"], batch["labels"], batch["position_ids"]
            # What fills a row up is a document by itself, as in torchtitan's own rows.
            positions = torch.where(positions < 0, (positions < 0).cumsum(-1) - 1, positions)
            if FLAT:
                inputs, labels, positions = inputs.flatten(), labels.flatten(), positions.flatten()
            yield {"input": inputs, "positions": positions}, labels


if __name__ == "__main__":  # what torchtitan's trainer does with a loader
    arguments = parsed(__doc__, steps=20)
    distributed.init_process_group("gloo")
    replica = {"dp_rank": distributed.get_rank(), "dp_world_size": distributed.get_world_size()}
    sizes = {"max_context_length": 32, "num_tokens_per_batch": 64} if FLAT else {"seq_len": 32, "local_batch_size": 2}
    loader = TitanLoader.Config().build(**replica, **sizes)
    model, path = TinyModel(arguments.folder), Path(arguments.folder, "checkpoint")
    if path.exists():
        checkpoint.load({"dataloader": loader}, checkpoint_id=path)
    for inputs, labels in islice(loader, arguments.steps):
        logits = model.head(model.embedding(inputs["input"]))
        cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
        note(arguments.folder, *inputs["input"][(inputs["positions"] == 0) & (labels >= 0)].tolist())
    checkpoint.save({"dataloader": loader}, checkpoint_id=path)
    distributed.destroy_process_group()
