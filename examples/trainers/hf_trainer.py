"""HF Trainer, in one process or several: stopped at a step, resumed from its last checkpoint by seek.

torchrun --nproc-per-node=2 examples/trainers/hf_trainer.py run --stop-after 7
torchrun --nproc-per-node=2 examples/trainers/hf_trainer.py run
"""

from typing import Any

import torch
from tiny import BATCH_SIZE, NUM_ROWS, TinyModel, parsed, training_set, validation_set, with_targets
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from streamdata import MergedDataset, StreamLoader, by_name, loss_by_source
from streamdata.compat import StreamCallback


class SourceLosses:
    """What makes a Trainer log the loss of each source beside that of all."""

    stream: MergedDataset
    sums: torch.Tensor | float = 0.0

    def add(self, losses: torch.Tensor, batch: dict[str, Any]) -> None:
        """Add the losses of what each token predicts, (B, T); the batch is one of `with_targets`."""
        self.sums += torch.stack(loss_by_source(losses, batch, len(self.stream.source_names)))

    def log(self, logs: dict[str, float], *args: Any) -> None:
        if "loss" in logs:  # of the steps since the last time
            sums, self.sums = self.accelerator.reduce(self.sums), 0.0
            logs |= {f"loss_{name}": loss for name, loss in by_name(*sums, self.stream.source_names).items()}
        super().log(logs, *args)


class StreamTrainer(SourceLosses, Trainer):
    """A Trainer that reads streams."""

    def get_train_dataloader(self) -> StreamLoader:  # type: ignore[override]
        self.stream = training_set(2)
        per_rank = NUM_ROWS // BATCH_SIZE // self.args.world_size
        return StreamLoader(self.stream, BATCH_SIZE, num_workers=2, steps_per_epoch=per_rank)

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **options: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        if model.training:
            batch = with_targets(inputs)
            self.add(cross_entropy(outputs["logits"].transpose(1, 2), batch["target_ids"], reduction="none"), batch)
        return (loss, outputs) if return_outputs else loss

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
        logging_steps=5,
        logging_first_step=True,
        report_to="none",
        use_cpu=True,
    )
    callbacks = [StreamCallback(), StopAfter(arguments.stop_after)]
    trainer = StreamTrainer(TinyModel(arguments.folder), options, eval_dataset=validation_set(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.folder))
