"""A plain loop, under DDP or FSDP2: killed at any time, resumed by any number of ranks and workers.

torchrun --nproc-per-node=2 examples/trainers/plain_loop.py run --steps 30
torchrun --nproc-per-node=3 examples/trainers/plain_loop.py run --steps 30 --fsdp --workers 1
"""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tiny import BATCH_SIZE, TinyModel, note, parsed, training_set, with_targets
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from streamdata import StreamLoader, StreamState, by_name, loss_by_source

SAVE_EVERY = 5


class Weights:
    """Model and optimizer, as torch.distributed.checkpoint takes them: for any number of ranks."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True))

    def load_state_dict(self, states: dict[str, Any]) -> None:
        set_state_dict(
            self.model, self.optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
        )


arguments = parsed(__doc__, steps=20, workers=2, fsdp=False)

distributed.init_process_group("gloo")
model = (fully_shard if arguments.fsdp else DistributedDataParallel)(TinyModel(arguments.folder))
optimizer = torch.optim.AdamW(model.parameters())
dataset = training_set(2)
loader = StreamLoader(dataset, BATCH_SIZE, num_workers=arguments.workers)
state = {"weights": Weights(model, optimizer), "stream": StreamState(loader)}

# What a killed job began to save has no .metadata, which is written last.
steps = [int(path.parent.name) for path in Path(arguments.folder).glob("steps/*/.metadata")]
if last := max(steps, default=0):
    checkpoint.load(state, checkpoint_id=f"{arguments.folder}/steps/{last}")
note(arguments.folder, f"resumed {last}")
sums = torch.zeros(2, len(dataset.source_names))
for step, batch in enumerate(islice(loader, arguments.steps), last + 1):
    output = model(**batch)
    output["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    trained = with_targets(batch)
    losses = cross_entropy(output["logits"].transpose(1, 2), trained["target_ids"], reduction="none")
    sums += torch.stack(loss_by_source(losses, trained, len(dataset.source_names)))
    if step % SAVE_EVERY == 0:
        distributed.all_reduce(sums)
        note(arguments.folder, f"losses {json.dumps(by_name(*sums, dataset.source_names))}")
        sums.zero_()
        checkpoint.save(state, checkpoint_id=f"{arguments.folder}/steps/{step}")
        note(arguments.folder, f"saved {step}")
distributed.destroy_process_group()
