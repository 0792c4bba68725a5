import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamdata import MergedDataset, StateError, StreamLoader, TensorCollate
from streamdata.compat import StreamCallback
from tests.streams import Numbers


def make(**settings: int) -> StreamLoader:
    """Batches of 2 of 40 numbers."""
    dataset = MergedDataset([Numbers("a", 40)], cyclic=False, stop="all_exhausted")
    return StreamLoader(dataset, 2, collate=TensorCollate(), **settings)


def args(folder: Path, **settings: object) -> SimpleNamespace:
    """As much of TrainingArguments as the callback reads."""
    given = {"ignore_data_skip": True, "gradient_accumulation_steps": 2, "resume_from_checkpoint": None}
    return SimpleNamespace(output_dir=str(folder), **given | settings)


def at(step: int) -> SimpleNamespace:
    """As much of TrainerState."""
    return SimpleNamespace(global_step=step, log_history=[{"loss": float("nan"), "step": step}])


def saved(folder: Path) -> None:
    """Step 3 of a Trainer that had fetched 8 batches, and trained 6 in steps of 2."""
    callback, loader, options = StreamCallback(), make(steps_per_epoch=20), args(folder)
    callback.on_train_begin(options, at(0), None, train_dataloader=loader)
    iterator = iter(loader)
    for _ in range(8):
        next(iterator)
    for _ in range(3):
        callback.on_substep_end(options, at(3), None)
        callback.on_step_end(options, at(3), None)
    callback.on_save(options, at(3), None, train_dataloader=loader)
    (folder / "checkpoint-3" / "trainer_state.json").write_text(json.dumps(vars(at(3))))


def resume(options: SimpleNamespace, loader: StreamLoader) -> list[int]:
    """What a Trainer reads that has loaded the checkpoint of step 3."""
    StreamCallback().on_train_begin(options, at(3), None, train_dataloader=loader)
    return [value for batch in loader for value in batch["value"].tolist()]


def test_what_was_fetched_and_not_trained_comes_again(tmp_path: Path) -> None:
    """The rest of the stretch after the sixth batch, not after the eighth."""
    whole = [value for batch in make() for value in batch["value"].tolist()]
    saved(tmp_path)
    assert resume(args(tmp_path), make(steps_per_epoch=20)) == whole[12:]


def test_a_checkpoint_elsewhere_must_be_named(tmp_path: Path) -> None:
    """A Trainer with another output_dir: its callbacks are not told what it loaded."""
    saved(tmp_path / "old")
    other = args(tmp_path / "new")
    with pytest.raises(StateError, match=r"resumed from another one\n  Name it in TrainingArguments"):
        resume(other, make(steps_per_epoch=20))
    other.resume_from_checkpoint = str(tmp_path / "old" / "checkpoint-3")
    assert len(resume(other, make(steps_per_epoch=20))) == 28


def test_a_checkpoint_that_a_killed_job_had_begun_is_refused(tmp_path: Path) -> None:
    """The Trainer has written its own part by then; the error says what to do."""
    saved(tmp_path)
    shutil.rmtree(tmp_path / "checkpoint-3" / "stream")
    with pytest.raises(StateError, match="no states are saved there") as caught:
        resume(args(tmp_path), make(steps_per_epoch=20))
    assert "Resume from one before it" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("length", "accumulation", "left", "last"), [(19, 2, 13, 1), (20, 4, 14, 2), (20, 3, 14, 2), (7, 2, 1, 1)]
)
def test_a_resume_whose_last_step_would_be_shorter_is_refused(
    tmp_path: Path, length: int, accumulation: int, left: int, last: int
) -> None:
    """The Trainer would accumulate its gradients, and make no step of them."""
    saved(tmp_path)
    with pytest.raises(StateError, match=f"of {length} batches, and of the {left} that are left the last {last} would"):
        resume(args(tmp_path, gradient_accumulation_steps=accumulation), make(steps_per_epoch=length))


@pytest.mark.parametrize(("length", "accumulation"), [(20, 2), (20, 7), (6, 4), (9, 3)])
def test_a_resume_of_which_whole_steps_are_left_goes_on(tmp_path: Path, length: int, accumulation: int) -> None:
    """Also with other steps; and at an epoch's end, since the Trainer makes the last step of a whole epoch."""
    saved(tmp_path)
    options = args(tmp_path, gradient_accumulation_steps=accumulation)
    assert len(resume(options, make(steps_per_epoch=length))) == 2 * (length - 6 % length)


def test_a_trainer_that_skips_by_itself_is_refused(tmp_path: Path) -> None:
    """It would skip batches after the seek."""
    with pytest.raises(ValueError, match="ignore_data_skip=True"):
        StreamCallback().on_train_begin(args(tmp_path, ignore_data_skip=False), at(0), None, train_dataloader=make())


def test_another_loader_is_refused(tmp_path: Path) -> None:
    """The Trainer's own, of which nothing could be saved."""
    with pytest.raises(ValueError, match="got a list\n  Let get_train_dataloader"):
        StreamCallback().on_train_begin(args(tmp_path), at(0), None, train_dataloader=[])
