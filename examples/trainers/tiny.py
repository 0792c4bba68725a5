"""What the scripts beside this one share: some rows, a model that learns them, and a note of what it was trained on.

Nothing is downloaded. A row is its own number and 16 tokens, of which the first is that number; the model writes the
numbers into `FOLDER/rows` in each forward pass of training, so that a test can count them over all ranks, stops and
resumes.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from streamdata import MergedDataset, named

NUM_ROWS, BATCH_SIZE, VOCABULARY = 240, 4, 256
IGNORED = -100  # the label of what is not trained


class Rows:
    """A map-style dataset: `size` rows from `start` on."""

    percent = 1

    def __init__(self, start: int = 0, size: int = NUM_ROWS) -> None:
        self.start, self.size, self.name = start, size, f"rows_from_{start}"

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = (torch.arange(16) * 7 + self.start + index) % VOCABULARY
        return {"row": self.start + index, "input_ids": tokens, "labels": tokens}


def training_set(num_sources: int = 1, **attributes: Any) -> MergedDataset:
    """An endless stream: all rows once in each epoch, in so many sources, with what attributes a source may have."""
    size = NUM_ROWS // num_sources
    parts = [Rows(start, size) for start in range(0, NUM_ROWS, size)]
    return MergedDataset([named(part, name=part.name, percent=1, **attributes) for part in parts], seed=1)


def next_labels(labels: Tensor) -> Tensor:
    """What each token predicts, (B, T), where a model shifts labels itself: nothing, -100, at the end of a row."""
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def with_targets(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch as `loss_by_source` takes it where a model shifts `labels` itself: with what each token predicts.

    A mask that the batch had is of its own targets, not of these.
    """
    targets = next_labels(batch["labels"])
    return {**batch, "target_ids": targets, "loss_mask": targets != IGNORED}


def validation_set() -> MergedDataset:
    """Other rows, once."""
    return MergedDataset([Rows(start=1000)], cyclic=False, stop="all_exhausted", seed=1)


class TinyModel(nn.Module):
    """Predicts the next token from the present one.

    Args:
        folder: Where it notes what it was trained on.
    """

    accepts_loss_kwargs = False  # HF Trainer divides the loss by the number of batches that it accumulates

    def __init__(self, folder: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.folder = folder
        self.embedding, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: Tensor, row: Tensor, labels: Tensor | None = None, **ids: Tensor) -> dict[str, Tensor]:
        """Return the loss, and note the rows where it is trained; `ids` say of which records they are."""
        if self.training:
            note(self.folder, *row.tolist())
        logits = self.head(self.embedding(input_ids))
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), next_labels(input_ids))
        return {"loss": loss, "logits": logits}


def note(folder: str, *words: object) -> None:
    """Append a line to the file of this process."""
    path = Path(folder, "rows", f"{os.getppid()}-{os.getpid()}.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(*words, file=file)


def parsed(description: str | None, **options: int | None) -> argparse.Namespace:
    """The command line: the job's folder, and options that are numbers or, where the default is False, flags."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where checkpoints go, and the rows that were trained on")
    for name, default in options.items():
        kind: dict[str, Any] = {"action": "store_true"} if default is False else {"type": int, "default": default}
        parser.add_argument("--" + name.replace("_", "-"), **kind)
    arguments = parser.parse_args()
    Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    return arguments
