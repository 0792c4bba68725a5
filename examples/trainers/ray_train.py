"""Ray Train: two workers on CPU, one of which is killed; Ray starts both anew from its last checkpoint.

python examples/trainers/ray_train.py run --steps 20 --kill-at 8
"""

import os
import signal
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from tiny import BATCH_SIZE, TinyModel, note, parsed, training_set

from streamdata import StreamLoader, load_states, save_states

SAVE_EVERY = 5


def train_on_worker(config: dict[str, Any]) -> None:
    """One rank: Ray has made a process group, of which our dataset finds its rank."""
    model = prepare_model(TinyModel(config["folder"]))
    optimizer = torch.optim.AdamW(model.parameters())
    # A Ray worker has threads: with num_workers, give multiprocessing_context="forkserver".
    loader = StreamLoader(training_set(), BATCH_SIZE)
    last, checkpoint = 0, train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            states = load_states(folder)
            model.load_state_dict(torch.load(Path(folder, "model.pt")))
        loader.load_state_dict(states)
        last = states.step
    note(config["folder"], f"resumed {last}")
    for step, batch in enumerate(islice(loader, config["steps"] - last), last + 1):
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()
        if step % SAVE_EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                save_states(folder, loader.state_dict(), step=step)  # Ray puts the files of all ranks into one folder
                torch.save(model.state_dict(), Path(folder, "model.pt"))
                train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(folder))
            note(config["folder"], f"saved {step}")
        if step == config["kill_at"] and last == 0 and train.get_context().get_world_rank() == 1:
            time.sleep(10)  # a report counts once Ray's controller has asked for it
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    arguments = vars(parsed(__doc__, steps=20, kill_at=None))
    ray.init(num_cpus=2, include_dashboard=False)
    folder = str(Path(arguments["folder"]).resolve())
    run_config = train.RunConfig(storage_path=folder, name="ray", failure_config=train.FailureConfig(max_failures=1))
    options = {"scaling_config": train.ScalingConfig(num_workers=2), "run_config": run_config}
    TorchTrainer(train_on_worker, train_loop_config={**arguments, "folder": folder}, **options).fit()
