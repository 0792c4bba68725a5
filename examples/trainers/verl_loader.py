"""verl's loader of prompts: our `RLHFDataset` and sampler in the StatefulDataLoader that its trainers build.

torchrun --nproc-per-node=2 examples/trainers/verl_loader.py run --steps 5
torchrun --nproc-per-node=1 examples/trainers/verl_loader.py run --steps 20
"""

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from omegaconf import OmegaConf
from tiny import BATCH_SIZE, NUM_ROWS, note, parsed
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import distributed
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import PreTrainedTokenizerFast

from streamdata import ResumableDistributedSampler, RLHFDataset, collate_fn


def words_and_prompts(path: Path) -> PreTrainedTokenizerFast:
    """Write a file of prompts, and return a tokenizer for them: one token for each word."""
    chats = [[{"role": "user", "content": f"add {row} and one"}] for row in range(NUM_ROWS)]
    pq.write_table(pa.table({"prompt": chats, "extra_info": [{"index": row} for row in range(NUM_ROWS)]}), path)
    words = ["[UNK]", "add", "and", "one", *map(str, range(NUM_ROWS))]
    rule = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    rule.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=rule, pad_token="[UNK]", chat_template="{{ messages[0].content }}")


if __name__ == "__main__":
    arguments = parsed(__doc__, steps=20)
    distributed.init_process_group("gloo")
    path = Path(arguments.folder, f"prompts_{distributed.get_rank()}.parquet")
    config = OmegaConf.create({"train_batch_size": BATCH_SIZE, "max_prompt_length": 16, "cache_dir": arguments.folder})
    data = RLHFDataset(str(path), words_and_prompts(path), config)  # what verl's `data.custom_cls` names
    sampler = ResumableDistributedSampler(data, seed=1)
    loader = StatefulDataLoader(data, BATCH_SIZE, num_workers=2, drop_last=True, collate_fn=collate_fn, sampler=sampler)
    saved = Path(arguments.folder, "data.pt")
    if saved.exists():
        loader.load_state_dict(torch.load(saved, weights_only=False))
    for batch in islice(loader, arguments.steps):
        note(arguments.folder, *batch["index"])
    distributed.barrier()
    if distributed.get_rank() == 0:  # all ranks' say the same
        torch.save(loader.state_dict(), saved)
    distributed.destroy_process_group()
