"""A dataset of one's own over a store by AstrAI's configuration: python astrai.py CHATS TOKENIZER OUTPUT."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamdata import DatasetFactory, Pipeline, SFTDataset, named

chats, tokenizer, output = sys.argv[1:4]
Pipeline(Path(__file__).with_name("astrai.json"), tokenizer).run([chats], output)


@DatasetFactory.register("answers")
class Answers(SFTDataset):
    """Windows whose targets are -100 where nothing is trained."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        samples = super().__getitems__(indices)
        for sample in samples:
            sample["target_ids"] = sample["target_ids"].masked_fill(~sample.pop("loss_mask"), -100)
        return samples


dataset = DatasetFactory.load("answers", output, 64, stride=32)
print(f"{dataset.count} tokens of {', '.join(dataset.keys)}, {len(dataset)} windows")
train = named(dataset, name="answers", percent=1, parts="95,5", part="train")  # a source of a MergedDataset
print(f"the first window has the fields {', '.join(sorted(train[0]))}")
