"""Context parallelism by Megatron-Core's `parallel_state`: ranks that train on parts of the same rows, one that reads.

    torchrun --nproc-per-node=4 examples/trainers/megatron_group.py run --steps 10 --cp 2
    torchrun --nproc-per-node=4 examples/trainers/megatron_group.py run --steps 10 --cp 1

A job goes on with any other numbers of data-parallel and context-parallel ranks.
"""

from itertools import islice
from pathlib import Path

import torch
from megatron.core import parallel_state
from tiny import BATCH_SIZE, TinyModel, note, parsed, training_set
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from streamdata import GroupLoader, StreamLoader, load_states, save_states

SAVE_EVERY = 5

arguments = parsed(__doc__, steps=10, cp=2, workers=1)
saved = Path(arguments.folder, "saved")
distributed.init_process_group("gloo")
parallel_state.initialize_model_parallel(context_parallel_size=arguments.cp)
dp_size, dp_rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
part = parallel_state.get_context_parallel_rank()

dataset = training_set()
dataset.set_data_parallel(dp_size, dp_rank)  # alike on all ranks of a tensor- and context-parallel group
group = parallel_state.get_tensor_and_context_parallel_group()
loader = GroupLoader(StreamLoader(dataset, BATCH_SIZE, arguments.workers), group)
model = DistributedDataParallel(TinyModel(arguments.folder))
optimizer = torch.optim.AdamW(model.parameters())

last = 0
if saved.exists():
    states = load_states(saved)
    last = states.step
    loader.load_state_dict(states)
    model.load_state_dict(torch.load(saved / f"step-{last}.pt"))
note(arguments.folder, f"resumed {last}")
note(arguments.folder, f"member {dp_rank} {part}")
for step, batch in enumerate(islice(loader, arguments.steps), last + 1):
    # Each rank's part of the tokens: here `context_slice` goes, for attention that is shared out.
    tokens = batch["input_ids"].chunk(arguments.cp, dim=1)[part]
    model(tokens, batch["row"])["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % SAVE_EVERY == 0:
        if distributed.get_rank() == 0:
            saved.mkdir(exist_ok=True)
            torch.save(model.state_dict(), saved / f"step-{step}.pt")
        distributed.barrier()  # a step that all ranks have saved has weights
        save_states(saved, loader.state_dict(), step=step)  # the first rank of each group writes
        distributed.barrier()
        note(arguments.folder, f"saved {step}")
distributed.destroy_process_group()
