"""verl's fully asynchronous rollouter, whose prompts come from a ledger: both ends of it, without servers and training.

python examples/trainers/verl_rollouter.py run --steps 20
python examples/trainers/verl_rollouter.py run --steps 100
"""

import asyncio
import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tiny import BATCH_SIZE, note, parsed
from verl.experimental import fully_async_policy
from verl.experimental.fully_async_policy.detach_utils import RolloutSample, prepare_single_generation_data
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncRollouter
from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
from verl.experimental.fully_async_policy.message_queue import MessageQueue
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl_loader import words_and_prompts

from streamdata import MergedDataset, PromptLedger, collate_fn, named

ACTORS = FullyAsyncRollouter, FullyAsyncTrainer, MessageQueue
Rollouter, Trainer, Queue = (actor.__ray_metadata__.modified_class for actor in ACTORS)


def write(path: str, text: str) -> None:
    """Write a small file whole, or not at all."""
    Path(f"{path}.new").write_text(text)
    os.replace(f"{path}.new", path)


class LedgerRollouter(Rollouter):
    """Takes prompts from a ledger; `data.custom_cls` names our RLHFDataset. Let `ray.remote` make an actor of it."""

    def __init__(self, config: Any, tokenizer: Any, *more: Any, **settings: Any) -> None:
        super().__init__(config, tokenizer, *more, **settings)
        prompts = named(self.train_dataset, name="prompts", percent=1, max_epochs=config.trainer.total_epochs)
        self.ledger = PromptLedger(MergedDataset([prompts], seed=1))

    async def _feed_samples(self) -> None:
        while not self.ledger.finished:
            prompts = await asyncio.to_thread(self.ledger.take, 1)
            for prompt in prompts:
                batch = prepare_single_generation_data(collate_fn([prompt.sample]), self.config)
                name = f"{prompt.id}.{prompt.attempt}"  # verl calls the answers uid_{name}
                await self.pending_queue.put(RolloutSample(batch, name, prompt.record_id[0], {}))
            await asyncio.sleep(0 if prompts else 0.01)  # what is open may be tried again
        await self.pending_queue.put(None)

    async def done(self, uids: set[str]) -> None:
        """Settle prompts whose answers have been trained on."""
        self.ledger.done([tuple(map(int, uid.removeprefix("uid_").split("."))) for uid in uids])

    async def save_checkpoint(self, local_global_step_folder: str) -> None:
        os.makedirs(local_global_step_folder, exist_ok=True)
        write(f"{local_global_step_folder}/ledger.json", json.dumps(self.ledger.state_dict()))

    def load_checkpoint(self) -> None:
        super().load_checkpoint()
        if folder := find_latest_ckpt_path(self.config.trainer.default_local_dir):
            self.ledger.load_state_dict(json.loads(Path(folder, "ledger.json").read_text()))


class LedgerTrainer(Trainer):
    """Says what it has trained on; it saves the ledger as it saved the loader's state."""

    def _fit_update_actor(self, batch: Any) -> Any:
        batch = super()._fit_update_actor(batch)
        ray.get(self.rollouter.done.remote({*batch.non_tensor_batch["uid"]}))
        return batch


def settings(folder: str, path: Path) -> Any:
    """Verl's own, but for a few."""
    ours = {
        "data": {"train_files": str(path), "val_files": str(path), "train_batch_size": 0, "gen_batch_size": 1},
        "actor_rollout_ref": {"hybrid_engine": False, "rollout": {"calculate_log_probs": True, "n": 2}},
        "trainer": {"total_epochs": 1, "default_local_dir": str(Path(folder).resolve())},
    }
    ours["data"] |= {"custom_cls": {"path": "pkg://streamdata", "name": "RLHFDataset"}, "max_prompt_length": 16}
    with initialize_config_dir(str(Path(fully_async_policy.__path__[0], "config")), version_base=None):
        return OmegaConf.merge(compose("fully_async_ppo_trainer"), ours)


async def answer(batch: Any) -> Any:
    """Stands for verl's servers: some answers take 50 times as long as others."""
    await asyncio.sleep(0.001 * 50 ** random.random())
    return batch


async def next_rows(queue: Any) -> list[bytes]:
    """Answers for a step; fewer at the end."""
    rows: list[bytes] = []
    while len(rows) < BATCH_SIZE and (row := (await queue.get_sample())[0]) is not None:
        rows.append(row)
    return rows


async def main(folder: str, steps: int) -> None:
    """Run the rollouter, and take from its queue what verl's trainer would train on."""
    path = Path(folder, "prompts.parquet")
    rollouter = LedgerRollouter(config := settings(folder, path), words_and_prompts(path))
    rollouter.load_checkpoint()
    last = find_latest_ckpt_path(config.trainer.default_local_dir)
    step = int(last.rpartition("_")[2]) if last else 0
    note(folder, f"resumed {step}")
    rollouter.message_queue_client = queue = Queue(config, 1000)
    rollouter.max_queue_size, rollouter.max_concurrent_samples, rollouter.max_required_samples = 1000, 16, 10**9
    rollouter.async_rollout_manager = SimpleNamespace(generate_sequences_single=answer)
    rollouter._init_async_objects()  # noqa: SLF001  what its `init_workers` and `fit` do, but for servers
    rollouts = asyncio.create_task(rollouter._streaming_generation_main())  # noqa: SLF001
    while step < steps and len(rows := await next_rows(queue)) == BATCH_SIZE:  # verl makes no step of fewer either
        answers = [ray.cloudpickle.loads(row).full_batch.non_tensor_batch for row in rows]
        note(folder, *(each["index"][0] for each in answers))
        await rollouter.done({each["uid"][0] for each in answers})
        step += 1
        if step % 5 == 0:
            await rollouter.save_checkpoint(f"{config.trainer.default_local_dir}/global_step_{step}")
            write(f"{folder}/latest_checkpointed_iteration.txt", str(step))
            note(folder, f"saved {step}")
    rollouts.cancel()


if __name__ == "__main__":
    arguments = parsed(__doc__, steps=100)
    asyncio.run(main(**vars(arguments)))
