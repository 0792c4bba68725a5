"""A loop in Megatron-LM's style: a blend of datasets, and all that a resume needs is `consumed_samples`.

    torchrun --nproc-per-node=2 examples/trainers/megatron_loop.py run --steps 20
    torchrun --nproc-per-node=1 examples/trainers/megatron_loop.py run --steps 20

Its samples are those of Megatron-Core's blend (`compat="megatron"`), and each rank takes those of its micro batches.
"""

from pathlib import Path

import torch
from tiny import BATCH_SIZE, NUM_ROWS, Rows, TinyModel, parsed
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from streamdata import BlendableDataset, ResumableDistributedSampler

arguments = parsed(__doc__, steps=20)
distributed.init_process_group("gloo")
dp_size, dp_rank = distributed.get_world_size(), distributed.get_rank()  # under tensor parallelism: of mpu's groups
model = DistributedDataParallel(TinyModel(arguments.folder))
optimizer = torch.optim.AdamW(model.parameters())

saved = Path(arguments.folder, "model.pt")
consumed_samples = 0
if saved.exists():
    state = torch.load(saved)
    consumed_samples = state["consumed_samples"]
    model.load_state_dict(state["model"])

dataset = BlendableDataset([Rows(), Rows(start=1000)], [1, 2], size=3 * NUM_ROWS // 2, compat="megatron")
sampler = ResumableDistributedSampler(dataset, shuffle=False, num_replicas=dp_size, rank=dp_rank)
sampler.load_state_dict(sampler.state_dict(0) | {"delivered_by_all": consumed_samples})
loader = DataLoader(dataset, BATCH_SIZE, sampler=sampler, num_workers=2, drop_last=True)
for _, batch in zip(range(arguments.steps), loader, strict=False):
    model(batch["input_ids"], batch["row"])["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    consumed_samples += len(batch["row"]) * dp_size
distributed.barrier()
if dp_rank == 0:
    torch.save({"model": model.state_dict(), "consumed_samples": consumed_samples}, saved)
distributed.destroy_process_group()
