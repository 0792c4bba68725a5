"""verl's loader of prompts: our `RLHFDataset` and sampler in the StatefulDataLoader that its trainers build.

    torchrun --nproc-per-node=2 examples/trainers/verl_loader.py run --steps 5
    torchrun --nproc-per-node=1 examples/trainers/verl_loader.py run --steps 20

verl saves the loader's state_dict() as `data.pt` in each checkpoint. Its trainer of PPO has one process that reads, its
trainer of SFT one per data-parallel rank; any number of them goes on from any of these files.
"""

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tiny import BATCH_SIZE, NUM_ROWS, note, parsed
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import distributed
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import PreTrainedTokenizerFast

from streamdata import ResumableDistributedSampler, RLHFDataset, collate_fn

CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def prompts(folder: str) -> RLHFDataset:
    """The dataset that verl's config names as `data.custom_cls`, over a file that is written here."""
    path = Path(folder, "prompts.parquet")
    if distributed.get_rank() == 0 and not path.exists():
        chats = [[{"role": "user", "content": f"add {row} and one"}] for row in range(NUM_ROWS)]
        rules = [{"style": "rule", "ground_truth": str(row + 1)} for row in range(NUM_ROWS)]
        indices = [{"index": row} for row in range(NUM_ROWS)]
        pq.write_table(pa.table({"prompt": chats, "reward_model": rules, "extra_info": indices}), path)
    distributed.barrier()
    words = ["[UNK]", "add", "and", "one", *map(str, range(NUM_ROWS))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[UNK]", chat_template=CHAT)
    return RLHFDataset(str(path), fast, {"max_prompt_length": 16, "cache_dir": f"{folder}/cache"})


if __name__ == "__main__":
    arguments = parsed(__doc__, steps=20)
    distributed.init_process_group("gloo")
    dataset = prompts(arguments.folder)
    sampler = ResumableDistributedSampler(dataset, seed=1)  # what verl's config names as `data.sampler`
    loader = StatefulDataLoader(
        dataset, BATCH_SIZE, sampler=sampler, num_workers=2, drop_last=True, collate_fn=collate_fn
    )
    saved = Path(arguments.folder, "data.pt")
    if saved.exists():
        loader.load_state_dict(torch.load(saved, weights_only=False))
    for batch in islice(loader, arguments.steps):
        note(arguments.folder, *batch["index"])
    distributed.barrier()
    if distributed.get_rank() == 0:  # all ranks' say the same
        torch.save(loader.state_dict(), saved)
    distributed.destroy_process_group()
