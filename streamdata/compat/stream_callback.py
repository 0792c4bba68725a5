"""HF Trainer: the states of what was trained, in its checkpoints."""

import json
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from streamdata.delivery.stream_loader import StreamLoader
from streamdata.errors import StateError
from streamdata.states.loading import load_states
from streamdata.states.saving import save_states
from streamdata.states.table import LoadedStates

FOLDER: Final = "stream"
"""The folder of states within a checkpoint."""

_STATE_FILE: Final = "trainer_state.json"


class StreamCallback(TrainerCallback):
    """Saves the states of a StreamLoader with each checkpoint, and goes on from them at a resume, by seek.

    The Trainer's `get_train_dataloader` returns the StreamLoader, and its arguments say `ignore_data_skip=True`: then

        Trainer.train(resume_from_checkpoint=True)

    reads what was not trained. The Trainer fetches the batches of an optimizer's step at once, so what was delivered
    is counted here, batch for batch as they are trained.

    Raises:
        ValueError: The Trainer has another loader, or would skip batches itself.
        StateError: The checkpoint that is resumed from has no states, or lies within an epoch of which the batches that
            are left do not make up whole steps of the optimizer.
    """

    def __init__(self) -> None:
        self._num_trained = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Go on where the checkpoint stands."""
        loader = _loader(kwargs)
        if not args.ignore_data_skip:
            raise ValueError(
                "StreamCallback: expected TrainingArguments with ignore_data_skip=True\n"
                "  Otherwise the Trainer would read again and drop what was trained, after our seek."
            )
        if state.global_step:
            loader.load_state_dict(_states(args, state))
            _check_accumulation(loader, args, state)
        self._num_trained = loader.num_batches

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count a batch whose gradients were accumulated."""
        self._num_trained += 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count a batch that completed an optimizer's step: an epoch's last step may have fewer than the others."""
        self._num_trained += 1

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write this rank's states into the checkpoint."""
        states = _loader(kwargs).state_after(self._num_trained)
        save_states(_of_step(args, state) / FOLDER, states, step=state.global_step)


def _loader(kwargs: dict[str, Any]) -> StreamLoader:
    loader = kwargs["train_dataloader"]
    if not isinstance(loader, StreamLoader):
        raise ValueError(
            f"StreamCallback: expected a StreamLoader as the Trainer's, got a {type(loader).__name__}\n"
            "  Let get_train_dataloader of your Trainer return it."
        )
    return loader


def _of_step(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir), f"checkpoint-{state.global_step}")


def _states(args: TrainingArguments, state: TrainerState) -> LoadedStates:
    """The states beside what the Trainer has loaded, of whose folder callbacks are told the Trainer's state alone."""
    folders = [Path(args.resume_from_checkpoint)] if isinstance(args.resume_from_checkpoint, str) else []
    folders.append(_of_step(args, state))
    checkpoint = next((folder for folder in folders if _holds(folder, state)), None)
    if checkpoint is None:
        raise StateError(
            f"StreamCallback: expected the checkpoint of step {state.global_step} in {' or '.join(map(str, folders))}, "
            "got a Trainer that was resumed from another one\n"
            "  Name it in TrainingArguments(resume_from_checkpoint=…) too."
        )
    try:
        return load_states(checkpoint / FOLDER, step=state.global_step)
    except StateError as error:
        error.add_note(
            "StreamCallback: a job that was killed may have begun this checkpoint\n"
            "  Resume from one before it: train(resume_from_checkpoint=…)."
        )
        raise


def _holds(folder: Path, state: TrainerState) -> bool:
    path = folder / _STATE_FILE
    if not path.is_file():
        return False
    saved = json.loads(path.read_text(encoding="utf-8"))
    # As text, since a loss may be NaN.
    mine, its = (json.dumps(history) for history in (state.log_history, saved["log_history"]))
    return bool(saved["global_step"] == state.global_step and mine == its)


def _check_accumulation(loader: StreamLoader, args: TrainingArguments, state: TrainerState) -> None:
    """The Trainer counts from 0 in the epoch that it resumes, so it would never make that epoch's last, shorter step.

    Raises:
        StateError: This resume begins within an epoch that ends with a shorter step.
    """
    if loader.steps_per_epoch is None:
        return
    size, left = args.gradient_accumulation_steps, loader.batches_left
    if left < loader.steps_per_epoch and left % size:
        raise StateError(
            f"StreamCallback: step {state.global_step} is within an epoch of {loader.steps_per_epoch} batches, and of "
            f"the {left} that are left the last {left % size} would accumulate gradients without a step\n"
            f"  Resume at an epoch's end, or give the StreamLoader steps_per_epoch of which whole steps are left."
        )
