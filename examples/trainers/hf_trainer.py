"""HF Trainer, in one process or several: stopped at a step, resumed from its last checkpoint by seek.

torchrun --nproc-per-node=2 examples/trainers/hf_trainer.py run --stop-after 7
torchrun --nproc-per-node=2 examples/trainers/hf_trainer.py run
"""

from typing import Any

from tiny import BATCH_SIZE, NUM_ROWS, TinyModel, parsed, training_set, validation_set
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from streamdata import StreamLoader
from streamdata.compat import StreamCallback


class StreamTrainer(Trainer):
    """A Trainer that reads streams."""

    def get_train_dataloader(self) -> StreamLoader:  # type: ignore[override]
        per_rank = NUM_ROWS // BATCH_SIZE // self.args.world_size
        return StreamLoader(training_set(), BATCH_SIZE, num_workers=2, steps_per_epoch=per_rank)

    def get_eval_dataloader(self, eval_dataset: object = None) -> StreamLoader:  # type: ignore[override]
        return StreamLoader(self.eval_dataset, BATCH_SIZE)


class StopAfter(TrainerCallback):
    """Stands for whatever ends a job: saves, and stops."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_save = state.global_step == self.step


if __name__ == "__main__":
    arguments = parsed(__doc__, stop_after=None, accumulate=3)
    options = TrainingArguments(
        output_dir=arguments.folder,
        num_train_epochs=2,
        gradient_accumulation_steps=arguments.accumulate,
        ignore_data_skip=True,  # our callback seeks; else the Trainer reads again what was trained, and drops it
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        use_cpu=True,
    )
    callbacks = [StreamCallback(), StopAfter(arguments.stop_after)]
    trainer = StreamTrainer(TinyModel(arguments.folder), options, eval_dataset=validation_set(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.folder))
