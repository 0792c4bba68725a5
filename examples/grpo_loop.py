"""Group-relative policy optimisation, its data loop: copies of a prompt, their rewards, and a resume within a group.

Each prompt comes `COPIES` times, side by side. The policy answers each copy, and what an answer is worth is its reward
less the mean of its group's. A group need not end with a batch: rewards of groups under way are part of the checkpoint,
beside the states of the stream.

First `python examples/make_demo_data.py demo_data`, then `python examples/grpo_loop.py demo_data`.
"""

import json
import sys
import tempfile
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from streamdata import MergedDataset, instantiate_from_yaml, mixed_collate, to_state
from streamdata.chats.prompts import prompt_collate

RECIPE = Path(__file__).parents[1] / "configs" / "prompts.yaml"
COPIES, BATCH_SIZE = 4, 6  # so that groups do not end with batches
NUM_BATCHES, STOP_AFTER = 40, 13

Sample = dict[str, Any]
Group = tuple[str, list[float]]
"""A prompt's uid and the advantages of its answers."""


class Trainer:
    """What a trainer keeps: where the stream stands, and the rewards of the groups under way.

    Args:
        data: The directory of the demo's data.
        checkpoint: As `save` wrote it; None to begin.
    """

    def __init__(self, data: str, checkpoint: str | None = None) -> None:
        saved = json.loads(checkpoint) if checkpoint else {"states": {}, "rewards": {}}
        self.states: dict[str, Any] = saved["states"]
        self.rewards: dict[str, list[float]] = saved["rewards"]
        self.dataset: MergedDataset = instantiate_from_yaml(RECIPE, variables={"data": data, "copies": COPIES})
        self.dataset.set_dataloader_states(self.states)

    def train(self, num_batches: int) -> list[Group]:
        """Take so many batches; return the groups that were completed."""
        loader = DataLoader(self.dataset, batch_size=BATCH_SIZE, num_workers=2, collate_fn=mixed_collate)
        done: list[Group] = []
        for samples in islice(loader, num_batches):
            done += self._step([sample for sample in samples if "raw_prompt_ids" in sample])
            self.states.update(to_state(samples))
        return done

    def save(self) -> str:
        """The checkpoint, as JSON."""
        return json.dumps({"states": self.states, "rewards": self.rewards})

    def _step(self, prompts: list[Sample]) -> list[Group]:
        """Answer a batch of prompts; what is not a prompt, such as text for another loss, was left out."""
        if not prompts:
            return []
        batch = prompt_collate(prompts)
        assert batch["input_ids"].shape == batch["attention_mask"].shape  # what a policy is given
        done = []
        for uid, worker, prompt in zip(batch["uid"], batch["__workerid__"], prompts, strict=True):
            group = self.rewards.setdefault(f"{worker}/{uid}", [])
            group.append(reward(prompt, number=len(group)))
            if len(group) == COPIES:
                done.append((uid, advantages(self.rewards.pop(f"{worker}/{uid}"))))
        return done


def reward(prompt: Sample, number: int) -> float:
    """Stands for a policy's answer number `number` and a rule that compares it with the ground truth."""
    text = f"{number} {prompt['reward_model']['ground_truth']}"
    return blake2b(text.encode(), digest_size=1).digest()[0] / 255


def advantages(rewards: list[float]) -> list[float]:
    """Each reward less the mean of the group."""
    return [round(value - sum(rewards) / len(rewards), 6) for value in rewards]


def main(data: str = "demo_data") -> None:
    """Train without a stop, then with one in the middle of groups, and compare.

    Raises:
        SystemExit: They differ.
    """
    whole = Trainer(data).train(NUM_BATCHES)
    first = Trainer(data)
    groups = first.train(STOP_AFTER)
    under_way = [len(rewards) for rewards in first.rewards.values()]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint.json")
        checkpoint.write_text(first.save())
        groups += Trainer(data, checkpoint.read_text()).train(NUM_BATCHES - STOP_AFTER)
    print(f"{len(whole)} groups of {COPIES}; stopped with {under_way} answers of groups under way")
    print(f"resumed: {sum(a == b for a, b in zip(whole, groups, strict=False))} of {len(whole)} groups are the same")
    if groups != whole:
        sys.exit("the resumed run differs")


if __name__ == "__main__":
    main(*sys.argv[1:])
