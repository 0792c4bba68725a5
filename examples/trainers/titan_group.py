"""Context parallelism by meshes, as torchtitan has it: ranks that train on parts of the same rows, and one that reads.

    torchrun --nproc-per-node=4 examples/trainers/titan_group.py run --steps 10 --cp 2
    torchrun --nproc-per-node=4 examples/trainers/titan_group.py run --steps 10 --cp 1

A job goes on with any other numbers of data-parallel and context-parallel ranks.
"""

from itertools import islice
from pathlib import Path

import torch
from tiny import BATCH_SIZE, TinyModel, note, parsed, training_set
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from streamdata import GroupLoader, StreamLoader, StreamState

SAVE_EVERY = 5

arguments = parsed(__doc__, steps=10, cp=2, workers=1)
distributed.init_process_group("gloo")
sizes = distributed.get_world_size() // arguments.cp, arguments.cp
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp_shard", "cp"))
part = mesh.get_local_rank("cp")

dataset = training_set()
dataset.set_data_parallel(mesh=mesh)  # alike on all ranks of a context-parallel group
loader = GroupLoader(StreamLoader(dataset, BATCH_SIZE, arguments.workers), mesh)
model = DistributedDataParallel(TinyModel(arguments.folder))
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "dataloader": StreamState(loader)}

# What a killed job began to save has no .metadata, which is written last.
steps = [int(path.parent.name) for path in Path(arguments.folder).glob("steps/*/.metadata")]
if last := max(steps, default=0):
    checkpoint.load(state, checkpoint_id=f"{arguments.folder}/steps/{last}")
note(arguments.folder, f"resumed {last}")
note(arguments.folder, f"member {mesh.get_local_rank('dp_shard')} {part}")
for step, batch in enumerate(islice(loader, arguments.steps), last + 1):
    # Each rank's part of the tokens: here `context_slice` goes, for attention that is shared out.
    tokens = batch["input_ids"].chunk(arguments.cp, dim=1)[part]
    model(tokens, batch["row"])["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % SAVE_EVERY == 0:
        checkpoint.save(state, checkpoint_id=f"{arguments.folder}/steps/{step}")
        note(arguments.folder, f"saved {step}")
distributed.destroy_process_group()
