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


class Rows:
    """A map-style dataset: rows `start` to `start + NUM_ROWS - 1`."""

    percent = 1

    def __init__(self, start: int = 0) -> None:
        self.start, self.name = start, f"rows_from_{start}"

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = (torch.arange(16) * 7 + index) % VOCABULARY
        return {"row": self.start + index, "input_ids": tokens, "labels": tokens}


def training_set(**attributes: Any) -> MergedDataset:
    """An endless stream: all rows once in each epoch, with what attributes a source may have."""
    return MergedDataset([named(Rows(), name="rows_from_0", percent=1, **attributes)], seed=1)


def validation_set() -> MergedDataset:
    """Other rows, once."""
    return MergedDataset([Rows(start=1000)], cyclic=False, stop="all_exhausted", seed=1)


class TinyModel(nn.Module):
    """Predicts the next token from the present one.

    Args:
        folder: Where it notes what it was trained on.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.folder = folder
        self.embedding, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)

    def forward(self, input_ids: Tensor, row: Tensor, labels: Tensor | None = None, **ids: Tensor) -> dict[str, Tensor]:
        """Return the loss, and note the rows where it is trained; `ids` say of which records they are."""
        if self.training:
            note(self.folder, *row.tolist())
        logits = self.head(self.embedding(input_ids[:, :-1]))
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:])
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
