"""Group-relative policy optimisation whose prompts are answered by other processes, and finish in any order.

Rollout workers take prompts from the trainer's ledger and answer each `COPIES` times with the weights of that moment;
some answers take 50 times as long as others, and what takes too long is tried again later. Groups whose rewards are all
equal teach nothing: they are dropped, and others take their place. A checkpoint is the weights and the ledger: no
worker waits for it.

`python examples/async_grpo.py run`, half a minute; `examples/async_grpo_killed.py` kills it, and compares books.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from streamdata import LedgerClient, MergedDataset, PromptLedger, StaleAttempt, named

PROMPTS = [{"row": row, "digits": [row // 10, row % 10], "truth": (row // 10 + row % 10) % 10} for row in range(100)]
"""A map-style dataset of prompts: two digits, of whose sum the last digit is asked for."""
COPIES, GROUPS_OF_A_STEP, SAVE_EVERY = 8, 8, 10
SHORTEST_S, SPREAD, TOO_LONG_S = 0.002, 50, 0.09
START_METHOD = "forkserver"  # CUDA, and threads, do not take forks


class Policy(nn.Module):
    """Answers a prompt with a digit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, 64)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(64, 10))

    def forward(self, digits: Tensor) -> Categorical:
        """How likely each answer is, of prompts (B, 2)."""
        return Categorical(logits=self.head(self.embedding(digits + torch.tensor([0, 10])).sum(1)))


class Group(NamedTuple):
    """The answers to a prompt."""

    key: tuple[int, int]  # id and attempt of the prompt, which settle it
    prompt: dict[str, Any]
    epoch: int
    answers: list[int]
    log_probs: list[float]  # of the answers, under the weights that gave them

    @property
    def rewards(self) -> list[float]:
        """1 for a right answer."""
        return [float(answer == self.prompt["truth"]) for answer in self.answers]


def work(client: LedgerClient, policy: Policy, to_trainer: Connection) -> None:
    """Answer prompts until all are settled; a rollout worker's process."""
    torch.set_num_threads(1)
    trainer = multiprocessing.parent_process()
    while trainer is not None and trainer.is_alive():
        prompts = client.take(1, lease_s=60)  # if this process dies, another gets them
        if not prompts:
            if client.finished:
                return
            time.sleep(SHORTEST_S)
        for prompt in prompts:
            duration_s = SHORTEST_S * SPREAD ** random.random()
            time.sleep(min(duration_s, TOO_LONG_S))
            if duration_s > TOO_LONG_S:
                with suppress(StaleAttempt):  # it is somebody else's by now
                    client.retry([prompt.id], after=8)
                continue
            with torch.no_grad():
                likely = policy(torch.tensor([prompt.sample["digits"]] * COPIES))
                answers = likely.sample()
                log_probs = likely.log_prob(answers).tolist()
            key, epoch = (prompt.id, prompt.attempt), prompt.record_id[0]
            to_trainer.send(Group(key, prompt.sample, epoch, answers.tolist(), log_probs))


class Trainer:
    """Weights, ledger and step, from the newest checkpoint in the folder or from the start."""

    def __init__(self, folder: Path, epochs: int) -> None:
        self.checkpoint, self.num_prompts, self.step = folder / "checkpoint.pt", epochs * len(PROMPTS), 0
        self.policy = Policy().share_memory()  # workers see each step at once
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.02)
        source = named(PROMPTS, name="sums", percent=1, max_epochs=epochs)
        self.ledger = PromptLedger(MergedDataset([source], seed=1))
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            self.policy.load_state_dict(saved["policy"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.ledger.load_state_dict(saved["ledger"])
            self.step = saved["step"]
        number = len(list(folder.glob("log-*.jsonl")))
        self.log = (folder / f"log-{number:02}.jsonl").open("w", buffering=1)
        self.log.write(json.dumps({"resumed": self.step}) + "\n")

    def settled(self, group: Group, end: str) -> None:
        """Write a line to the log of this start, for books that are compared with the ledger's."""
        line = {"step": self.step, "epoch": group.epoch, "row": group.prompt["row"], "end": end}
        self.log.write(json.dumps(line) + "\n")

    def save(self) -> None:
        """Write the weights and the ledger as they are after this step; whoever answers goes on meanwhile."""
        state = {name: getattr(self, name).state_dict() for name in ("policy", "optimizer", "ledger")}
        beside = self.checkpoint.with_suffix(".new")
        torch.save(state | {"step": self.step}, beside)
        os.replace(beside, self.checkpoint)

    def collect(self, workers: list[Connection]) -> list[Group]:
        """Wait for the groups of a step, or as many as are left; drop those whose rewards are all equal."""
        groups: list[Group] = []
        while len(groups) < GROUPS_OF_A_STEP:
            stats = self.ledger.stats()
            if stats["done"] + stats["dropped"] + len(groups) == self.num_prompts:
                break
            if not workers:
                sys.exit("all workers have ended")
            for worker in wait(workers):
                try:
                    group = worker.recv()
                    self.ledger.keep([group.key])  # it is here: its lease does not run out while it waits for a step
                except (EOFError, OSError):
                    workers.remove(worker)
                    continue
                except StaleAttempt:  # its lease ran out: another answers the prompt
                    continue
                if len(set(group.rewards)) == 1:
                    self.ledger.drop([group.key], "equal")
                    self.settled(group, "dropped")
                else:
                    groups.append(group)
        return groups

    def train(self, groups: list[Group]) -> None:
        """Make a step on groups, and settle their prompts."""
        fields = "rewards", "answers", "log_probs"
        rewards, answers, old = (torch.tensor([getattr(group, name) for group in groups]) for name in fields)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
        likely = self.policy(torch.tensor([group.prompt["digits"] for group in groups]))
        ratio = (likely.log_prob(answers.T).T - old).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.ledger.done([group.key for group in groups])  # trained, and so of the next checkpoint
        for group in groups:
            self.settled(group, "done")
        self.step += 1


def main() -> None:
    """Train to the end of the last epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the checkpoint and the logs are")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    trainer, context = Trainer(arguments.folder, arguments.epochs), multiprocessing.get_context(START_METHOD)
    with trainer.ledger.serve() as server:
        workers = []
        for _ in range(arguments.workers):
            receiver, sender = context.Pipe(duplex=False)
            options = LedgerClient(server.url, server.token), trainer.policy, sender
            context.Process(target=work, args=options, daemon=True).start()
            sender.close()
            workers.append(receiver)
        while groups := trainer.collect(workers):
            trainer.train(groups)
            if trainer.step % SAVE_EVERY == 0:
                trainer.save()
        trainer.save()
        for process in multiprocessing.active_children():
            process.join()  # it has heard that nothing is left
    likely, counts = trainer.policy(torch.tensor([one["digits"] for one in PROMPTS])), trainer.ledger.stats()
    right = likely.probs[range(len(PROMPTS)), [prompt["truth"] for prompt in PROMPTS]].mean()
    words = ", ".join(f"{counts[name]:,.0f} {name}" for name in ("done", "dropped", "attempts", "again"))
    print(f"{trainer.step} steps; prompts: {words}; an answer is right in {right:.0%}")


if __name__ == "__main__":
    main()
