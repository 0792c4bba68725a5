"""Trains a small GPT on one pass of a recipe, by any number of ranks and workers, from where the last run stood.

First `python examples/make_demo_data.py demo_data`, then, as often as you like, with other numbers, stopped or killed:

    torchrun --nproc-per-node=2 examples/train_gpt.py demo_data run --workers 1

Each rank appends what it trained on to a log of its own in `run`; `examples/killed_run.py` compares and draws these.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy

from streamdata import StreamLoader, TensorCollate, instantiate_from_yaml, load_states, save_states

RECIPE = Path(__file__).parents[1] / "configs" / "gpt.yaml"
VOCABULARY, WINDOW, WIDTH, LAYERS, HEADS = 4096, 128, 96, 2, 4
GLOBAL_BATCH, SAVE_EVERY = 24, 10  # a multiple of 1, 2, 3 and 4 ranks


class GPT(nn.Module):
    """A causal transformer: ids, int64 (B, WINDOW) → logits, float32 (B, WINDOW, VOCABULARY)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(WINDOW, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight
        logits: torch.Tensor = self.head(self.layers(x, self.mask, is_causal=True))
        return logits


class Trainer:
    """A rank of the job: model, optimizer and loader, from the newest step that all ranks have saved."""

    def __init__(self, data: str, run: Path, num_workers: int) -> None:
        self.run, self.step, states = run, 0, {}
        self.rank, self.num_ranks = distributed.get_rank(), distributed.get_world_size()
        torch.manual_seed(1)
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        if (run / "states").exists():
            states = load_states(run / "states")
            self.step = states.step
            model, optimizer = torch.load(run / f"model-{self.step}.pt")
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        fields = dict.fromkeys(["__datasetname__", "__index__"], "list")
        dataset = instantiate_from_yaml(RECIPE, variables={"data": data, "seq_len": WINDOW})
        collate = TensorCollate(fields=fields)
        self.loader = StreamLoader(dataset, GLOBAL_BATCH // self.num_ranks, num_workers, collate)
        self.loader.load_state_dict(states)

    def train(self, log: TextIO) -> None:
        """Train to the end of the pass."""
        for batch in self.loader:
            loss = self.train_on(batch)
            self.step += 1
            samples = list(zip(batch["__datasetname__"], batch["__index__"], strict=True))
            print(json.dumps({"step": self.step, "loss": loss, "samples": samples}), file=log, flush=True)
            if self.step % SAVE_EVERY == 0:
                self.save()
        self.save()

    def train_on(self, batch: dict[str, Any]) -> float:
        """Take a step; return the loss of the global batch."""
        logits = self.model(batch["input_ids"])
        loss = cross_entropy(logits.flatten(0, 1), batch["target_ids"].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        means = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()] + [loss.detach()[None]])
        distributed.all_reduce(means)
        means /= self.num_ranks
        *parts, mean = means.split([parameter.numel() for parameter in self.model.parameters()] + [1])
        for parameter, part in zip(self.model.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self.optimizer.step()
        return mean.item()

    def save(self) -> None:
        """Write the model first: a step whose states are all there has one."""
        if self.rank == 0:
            path = self.run / f"model-{self.step}.pt"
            torch.save((self.model.state_dict(), self.optimizer.state_dict()), path.with_suffix(".tmp"))
            os.replace(path.with_suffix(".tmp"), path)
        save_states(self.run / "states", self.loader.state_dict(), step=self.step)


def main() -> None:
    """One rank, as torchrun starts it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("run", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(mode=True)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    trainer = Trainer(arguments.data, arguments.run, arguments.workers)
    arguments.run.mkdir(parents=True, exist_ok=True)
    lanes = f"{trainer.num_ranks}x{arguments.workers}"
    name = f"{trainer.step:06}-{lanes}-{trainer.rank}.jsonl"  # from which step on, by whom
    with (arguments.run / name).open("a", encoding="utf-8") as log:
        trainer.train(log)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
