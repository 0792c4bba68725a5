"""A loop of Accelerate's, in one process or several: `save_state` and `load_state` carry ours.

torchrun --nproc-per-node=2 examples/trainers/accelerate_loop.py run --steps 20
torchrun --nproc-per-node=3 examples/trainers/accelerate_loop.py run --steps 20
"""

from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from tiny import BATCH_SIZE, TinyModel, parsed, training_set

from streamdata import StreamLoader, StreamState

arguments = parsed(__doc__, steps=20)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
loader = StreamLoader(training_set(), BATCH_SIZE, num_workers=2)
model = TinyModel(arguments.folder)
optimizer = torch.optim.AdamW(model.parameters())
# `prepare` leaves the loader as it is, being no DataLoader: each process reads its own share through it.
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.register_for_checkpointing(StreamState(loader))

checkpoint = Path(arguments.folder, "checkpoint")
if checkpoint.exists():
    accelerator.load_state(str(checkpoint))
for batch in islice(loader, arguments.steps):
    with accelerator.accumulate(model):
        accelerator.backward(model(**{name: part.to(accelerator.device) for name, part in batch.items()})["loss"])
        optimizer.step()
        optimizer.zero_grad()
accelerator.save_state(str(checkpoint))
accelerator.end_training()
