"""Steers a mixture while it trains: a source that is learnt faster gets a larger weight, at any number of ranks.

First `python examples/make_demo_data.py demo_data`, then, as often as you like, with other numbers, stopped or killed:

    torchrun --nproc-per-node=2 examples/steering.py demo_data run --steps 240

Every 20 steps `loader.set_weights` sets the weights, and the states keep them. They are a softmax of each source's
learning progress, the part by which its loss has fallen, smoothed. This stands for a real rule in three lines: ADO
(arXiv 2410.11820) fits a scaling law to each source. `noise` shows what it does: nothing in it can be learnt.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from train_gpt import GLOBAL_BATCH, GPT, VOCABULARY, WINDOW

from streamdata import MergedDataset, SeqDataset, StreamLoader, by_name, load_states, loss_by_source, named, save_states

SMOOTHING, TEMPERATURE, LEAST = 0.5, 0.02, 0.1


class Noise:
    """Windows of random tokens."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(VOCABULARY, (WINDOW + 1,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids[:-1], "target_ids": ids[1:]}


def mixture(data: str) -> MergedDataset:
    """Code, docstrings and noise, at first in equal parts, without end."""
    stores = [SeqDataset(f"{data}/tokens/{name}", WINDOW, name=name, percent=1) for name in ("code", "docs")]
    return MergedDataset([*stores, named(Noise(), name="noise", percent=1)], seed=11)


class Steering:
    """The weights that follow from losses.

    Attributes:
        losses: The last loss of each source.
        progress: By which part each falls between two settings, smoothed.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.losses: dict[str, float] = {}
        self.progress = dict.fromkeys(names, 0.0)

    def weights(self, losses: dict[str, float]) -> dict[str, float]:
        """The weights for the next steps; each source keeps at least its part of `LEAST`, so that its loss is seen."""
        for name, loss in losses.items():
            fallen = 1 - loss / self.losses.get(name, loss)
            self.progress[name] += SMOOTHING * (fallen - self.progress[name])
        self.losses |= losses
        shares = torch.softmax(torch.tensor([*self.progress.values()], dtype=torch.float64) / TEMPERATURE, dim=0)
        shares = LEAST / len(shares) + (1 - LEAST) * shares
        return {name: round(share, 4) for name, share in zip(self.progress, shares.tolist(), strict=True)}


class Trainer:
    """A rank of the job: model, optimizer, steering and loader, from the newest step that all ranks have saved."""

    def __init__(self, data: str, run: Path, num_workers: int) -> None:
        self.run, self.step, states = run, 0, {}
        torch.manual_seed(1)
        self.model = DistributedDataParallel(GPT())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        dataset = mixture(data)
        self.names = dataset.source_names
        self.steering = Steering(self.names)
        self.wanted = dict.fromkeys(self.names, 1 / len(self.names))
        if (run / "states").exists():
            states = load_states(run / "states")
            self.step = states.step
            saved = torch.load(run / f"model-{self.step}.pt")
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.wanted, self.steering.losses, self.steering.progress = saved["steering"]
        self.loader = StreamLoader(dataset, GLOBAL_BATCH // distributed.get_world_size(), num_workers)
        self.loader.load_state_dict(states)

    def train(self, steps: int, every: int, log: TextIO) -> None:
        """Train up to a step; the weights change every so many, within the loop over the loader."""
        sums = torch.zeros(2, len(self.names))
        for batch in self.loader:
            sums += self.train_on(batch)
            self.step += 1
            if self.step % every == 0:
                distributed.all_reduce(sums)
                self.steer(sums, log)
                sums.zero_()
            if self.step >= steps:
                return

    def train_on(self, batch: dict[str, Any]) -> torch.Tensor:
        """Take a step; return the sums of losses of each source and how many tokens it had, (2, sources)."""
        losses = cross_entropy(self.model(batch["input_ids"]).transpose(1, 2), batch["target_ids"], reduction="none")
        self.optimizer.zero_grad()
        losses.mean().backward()
        self.optimizer.step()
        return torch.stack(loss_by_source(losses, batch, len(self.names)))

    def steer(self, sums: torch.Tensor, log: TextIO) -> None:
        """Set the weights for the next steps, note what these were like, and save."""
        losses, num_tokens = by_name(*sums, self.names), sums[1] / sums[1].sum()
        drawn = dict(zip(self.names, num_tokens.tolist(), strict=True))
        line = {"step": self.step, "wanted": self.wanted, "drawn": drawn, "losses": losses}
        self.wanted = self.steering.weights(losses)  # equal on all ranks, as the sums are
        self.loader.set_weights(self.wanted)
        print(json.dumps(line), file=log, flush=True)
        if distributed.get_rank() == 0:  # first: a step whose states are all there has a model
            steering = (self.wanted, self.steering.losses, self.steering.progress)
            parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "steering": steering}
            torch.save(parts, self.run / "model.tmp")
            os.replace(self.run / "model.tmp", self.run / f"model-{self.step}.pt")
        save_states(self.run / "states", self.loader.state_dict(), step=self.step)


def main() -> None:
    """One rank, as torchrun starts it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("run", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--every", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    trainer = Trainer(arguments.data, arguments.run, arguments.workers)
    arguments.run.mkdir(parents=True, exist_ok=True)
    name = f"{trainer.step:06}-{distributed.get_world_size()}x{arguments.workers}-{distributed.get_rank()}.jsonl"
    with (arguments.run / name).open("a", encoding="utf-8") as log:
        trainer.train(arguments.steps, arguments.every, log)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
