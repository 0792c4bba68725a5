"""TRL's asynchronous GRPO, whose rollout worker takes its prompts from a ledger: none is lost or trained on twice.

python examples/trainers/trl_async_grpo.py run --max-steps 6
python examples/trainers/trl_async_grpo.py run --max-steps 20
"""

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from stand_ins import install, save_tiny_model
from tiny import note, parsed, training_set
from transformers.trainer_utils import get_last_checkpoint
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop

from streamdata import LedgerClient, PromptLedger

LEASE_S = 1e9  # TRL's worker does not die alone: then the job ends
SETTINGS = {
    "num_generations": 4,
    "per_device_train_batch_size": 8,  # of whole groups
    "token_budget": -1,
    "max_staleness": 2,
    "save_steps": 3,
    "max_completion_length": 8,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "logging_steps": 1,
}


def as_prompt(row: dict[str, Any]) -> dict[str, Any]:
    """What TRL knows as a prompt; the reward functions get what else there is."""
    return {"row": row["row"], "prompt": [{"role": "user", "content": f"t{row['row']}"}]}


class LedgerLoop(_AsyncRolloutLoop):
    """The process of TRL's rollout worker; its dataset is a ledger's client."""

    def __init__(self, *, dataset: LedgerClient, **settings: Any) -> None:
        super().__init__(dataset=[], **settings)
        self.dataset = dataset

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        while True:
            for prompt in self.dataset.take(1, LEASE_S):
                for _ in range(self.num_generations):
                    yield prompt.id, prompt.sample  # the id is what TRL calls the group's

    async def _score_group(self, group: Any) -> list[Any]:
        rows: list[Any] = await super()._score_group(group)
        if any(row.advantage for row in rows):
            return rows
        await asyncio.to_thread(self.dataset.drop, [group.group_id], "equal")  # the next prompt takes its place
        return []


class Groups:
    """The trainer's end of the worker's queue: whole groups. One that is too old to be trained on is tried again."""

    def __init__(self, trainer: "LedgerTrainer") -> None:
        self.trainer, self.queue, self.qsize = trainer, trainer.rollout_queue, trainer.rollout_queue.qsize
        self.coming, self.ready, self.given = list[Any](), deque[Any](), deque[int]()

    def get(self, timeout: float) -> Any:
        """Return the next row, and note the group that it is of."""
        while not self.ready:
            while len(self.coming) < self.trainer.args.num_generations:
                self.coming.append(self.queue.get(timeout=timeout))
            rows, self.coming, version = self.coming, [], self.trainer.model_version
            if version - rows[0].model_version > self.trainer.args.max_staleness:
                self.trainer.ledger.retry([rows[0].group_id])
            else:
                self.ready.extend(replace(row, model_version=version) for row in rows)  # TRL drops none of them
        self.given.append(self.ready[0].group_id)
        return self.ready.popleft()


class LedgerTrainer(AsyncGRPOTrainer):
    """Settles prompts when their answers have been trained on, and saves the ledger with the weights."""

    def __init__(self, ledger: PromptLedger, **settings: Any) -> None:
        super().__init__(**settings)
        self.ledger, self.trained, self.rollout_queue = ledger, set[int](), Groups(self)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        first = inputs["input_ids"][inputs["position_ids"] == 0]
        note(self.args.output_dir, *first.unique().tolist())  # a prompt is one token, the number of its row
        loss = super().training_step(model, inputs, num_items_in_batch)
        for _ in range(self.args.per_device_train_batch_size):  # batches are of rows in the order of the queue
            self.trained.add(self.rollout_queue.given.popleft())
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.ledger.done(self.trained)
        self.trained.clear()
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        folder.mkdir(exist_ok=True)
        (folder / "ledger.json").write_text(json.dumps(self.ledger.state_dict()))
        super()._save_checkpoint(model, trial)
        note(self.args.output_dir, f"saved {self.state.global_step}")


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Some answers are right, and in some groups all are, or none."""
    return [float(sum(tokens) % 4 == 0) for tokens in completion_ids]


if __name__ == "__main__":
    line = parsed(__doc__, max_steps=20)
    model = str(Path(line.folder, "model"))
    save_tiny_model(model)
    ledger = PromptLedger(training_set(2, single_process_fn=as_prompt))
    last = get_last_checkpoint(line.folder)
    note(line.folder, f"resumed {last.rpartition('-')[2] if last else 0}")
    if last:
        ledger.load_state_dict(json.loads(Path(last, "ledger.json").read_text()))
    AsyncRolloutWorker._loop_cls = LedgerLoop  # noqa: SLF001  no other way
    with ledger.serve() as server:
        job = LedgerTrainer(
            ledger,
            model=model,
            args=AsyncGRPOConfig(line.folder, max_steps=line.max_steps, **SETTINGS, vllm_server_base_url=install()),
            reward_funcs=reward,
            train_dataset=LedgerClient(server.url, server.token),
            weight_transfer=Mock(),
        )
        job.train(resume_from_checkpoint=last)
