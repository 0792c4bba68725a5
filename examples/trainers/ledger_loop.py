"""A plain loop whose prompts are answered side by side, and finish in any order: killed at any time, resumed.

python examples/trainers/ledger_loop.py run --steps 20
python examples/trainers/ledger_loop.py run --steps 100 --side-by-side 30
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator

import torch
from tiny import BATCH_SIZE, Rows, TinyModel, note, parsed
from torch.utils.data import default_collate

from streamdata import MergedDataset, Prompt, PromptLedger, named

SAVE_EVERY, TIMEOUT_S = 5, 0.04


async def answer(prompt: Prompt) -> tuple[Prompt, bool]:
    """Stands for a rollout: some take 50 times as long as others, and some too long."""
    duration_s = 0.001 * 50 ** random.random()
    await asyncio.sleep(min(duration_s, TIMEOUT_S))
    return prompt, duration_s < TIMEOUT_S


async def batches(ledger: PromptLedger, side_by_side: int) -> AsyncIterator[list[Prompt]]:
    """Prompts in the order in which their answers come, to the end of the epoch."""
    running, batch = set[asyncio.Task[tuple[Prompt, bool]]](), list[Prompt]()
    while True:
        room = side_by_side - len(running)
        running |= {asyncio.create_task(answer(prompt)) for prompt in (ledger.take(room) if room else ())}
        if not running:
            break
        ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for prompt, is_in_time in [task.result() for task in ended]:
            if is_in_time:
                batch.append(prompt)
            else:
                ledger.retry([prompt.id], after=10)
        if len(batch) >= BATCH_SIZE:
            yield batch
            batch = []
    if batch:
        yield batch


async def train(folder: str, steps: int, side_by_side: int) -> None:
    """Train up to a step, or to the end of the epoch."""
    model, rows = TinyModel(folder), named(Rows(), name="rows", percent=1, max_epochs=1)
    optimizer, ledger = torch.optim.AdamW(model.parameters()), PromptLedger(MergedDataset([rows], seed=1))
    parts, checkpoint, step = {"model": model, "optimizer": optimizer, "ledger": ledger}, f"{folder}/last.pt", 0
    if os.path.exists(checkpoint):  # noqa: ASYNC240  nothing waits yet
        saved = torch.load(checkpoint)
        step = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    note(folder, f"resumed {step}")
    async for batch in batches(ledger, side_by_side):
        tokens, numbers = (default_collate([one.sample[name] for one in batch]) for name in ("input_ids", "row"))
        model(tokens, numbers)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        ledger.done([prompt.id for prompt in batch])
        step += 1
        if step % SAVE_EVERY == 0:
            torch.save({"step": step} | {name: part.state_dict() for name, part in parts.items()}, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
            note(folder, f"saved {step}")
        if step == steps:
            break


if __name__ == "__main__":
    arguments = parsed(__doc__, steps=100, side_by_side=8)
    asyncio.run(train(**vars(arguments)))
