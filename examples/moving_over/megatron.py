"""The samples of Megatron-Core 0.16.1, in its order: python megatron.py FOLDER, where wiki and code are pairs.

The exception: weights of a blend whose shares differ by less than 1e-5 count as exactly equal, and take turns.
"""

import sys
from pathlib import Path

from torch.utils.data import DataLoader

from streamdata import BlendableDataset, DatasetFactory, ResumableDistributedSampler

folder = Path(sys.argv[1])

# GPTDataset over one pair: sample i is that of shuffle_index[i].
wiki = DatasetFactory.load("seq", folder / "wiki", 128, compat="megatron", seed=1234, num_samples=500)
documents, samples, shuffle = wiki.indices
print(f"{len(documents)} documents, {len(shuffle)} samples; the first begins at {samples[shuffle[0]].tolist()}")

# --data-path 0.3 wiki 0.7 code --split 969,30,1 --seq-length 128 --seed 1234, with 1,000 samples to train on
paths = [0.3, folder / "wiki", 0.7, folder / "code"]
train = BlendableDataset.from_megatron(
    paths, 128, parts="969,30,1", part="train", size=1000, seed=1234, compat="megatron",
    eod_token=0, eod_mask_loss=True, reset_position_ids=True, reset_attention_mask=True,
)  # fmt: skip
loader = DataLoader(train, sampler=ResumableDistributedSampler(train, shuffle=False), batch_size=None)
sample = next(iter(loader))
print(f"{len(train)} samples; the first has the fields {', '.join(sorted(sample))}")
