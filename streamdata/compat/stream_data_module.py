"""Lightning: the states of what was trained, in its checkpoints."""

from collections.abc import Iterator
from typing import Any, Final

from streamdata.delivery.stream_loader import StreamLoader
from streamdata.errors import StateError
from streamdata.mixing.tree import tree_of
from streamdata.states.joining import gather_states

try:
    from lightning.pytorch import LightningDataModule
except ImportError as error:
    raise ImportError(
        "StreamDataModule: it needs Lightning, which is not installed\n  pip install 'torch-streamdata[lightning]'"
    ) from error

_KEY: Final = "states"


class StreamDataModule(LightningDataModule):  # type: ignore[misc]  # Any to mypy, where Lightning is not installed
    """Gives Lightning a StreamLoader, and its checkpoints the states of all ranks after what was trained.

        Trainer(…).fit(model, datamodule=StreamDataModule(loader), ckpt_path=…)

    A checkpoint resumes under any number of processes. Lightning would save by itself the state of a loader that has
    one; where no length is known it has pulled one batch ahead by then, to see which is the last, and it loads that
    state after ours. So it is given what iterates over the loader, not the loader.

    Args:
        train_loader: Its `steps_per_epoch`, where given, is Lightning's epoch.
        valid_loader: Over a finite stream: each validation reads it from its start.

    Raises:
        ValueError: A validation would never end.
        StateError: The checkpoint that is resumed from holds no states of ours.
    """

    def __init__(self, train_loader: StreamLoader, valid_loader: StreamLoader | None = None) -> None:
        super().__init__()
        if (
            valid_loader is not None
            and valid_loader.steps_per_epoch is None
            and tree_of(valid_loader.dataset).is_endless
        ):
            raise ValueError(
                "StreamDataModule: the stream of valid_loader has no end\n"
                "  Give it a finite one, MergedDataset(…).finite(), or steps_per_epoch."
            )
        self.train_loader, self.valid_loader = train_loader, valid_loader
        self._is_loaded = False
        self._num_before: int | None = None
        """Batches that Lightning counts as trained, over all runs, and the loader does not."""

    def setup(self, stage: str) -> None:
        """A fit begins; what it counts from is known once Lightning has loaded its checkpoint."""
        self._is_loaded, self._num_before = False, None

    def teardown(self, stage: str) -> None:
        """A fit has ended; another one goes on where it was."""
        if stage == "fit" and self._num_before is not None:
            self.go_back()

    def train_dataloader(self) -> "TrainBatches":
        """The batches to train on, which Lightning iterates over."""
        if self.trainer.ckpt_path is not None and not self._is_loaded:
            raise StateError(
                f"StreamDataModule: {self.trainer.ckpt_path} holds no states of a {type(self).__qualname__}, so that "
                "the data would begin anew\n  Resume from a checkpoint that was saved with one."
            )
        if self._num_before is None:
            self._num_before = self._num_processed() - self.train_loader.num_batches
        return TrainBatches(self)

    def val_dataloader(self) -> "ValidBatches | list[Any]":
        """The batches of a validation; an empty list where there is none."""
        return [] if self.valid_loader is None else ValidBatches(self.valid_loader)

    def state_dict(self) -> dict[str, Any]:
        """Join the states of all ranks, after the last batch that was trained; Lightning asks on every rank."""
        joined = gather_states(self.train_loader.state_after(self._num_trained()))
        assert joined is not None, "every rank gets them"
        return {_KEY: dict(joined)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the states of a checkpoint."""
        self.train_loader.load_state_dict(state_dict[_KEY])
        self._is_loaded = True

    def go_back(self) -> None:
        """Let the loader stand after what was trained: a batch that was pulled ahead comes again, as the next one."""
        trained = self._num_trained()
        if trained < self.train_loader.num_batches:
            self.train_loader.go_back(trained)

    def _num_trained(self) -> int:
        """The number of the loader's batches that were trained on."""
        assert self._num_before is not None, "Lightning asks for the loader before it trains"
        return self._num_processed() - self._num_before

    def _num_processed(self) -> int:
        # When a checkpoint is saved as a batch ends, that batch is processed, and not yet completed.
        return int(self.trainer.fit_loop.epoch_loop.batch_progress.total.processed)


class TrainBatches:
    """The batches that are left of the loader's stretch or pass, from the first batch that was not trained on.

    Args:
        module: Whose loader it is.
    """

    def __init__(self, module: StreamDataModule) -> None:
        self._module = module

    def __iter__(self) -> Iterator[Any]:
        self._module.go_back()
        return iter(self._module.train_loader)

    def __len__(self) -> int:
        return len(self._module.train_loader)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the module saves. Without this, Lightning warns at a resume that the data may be wrong."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load."""


class ValidBatches:
    """A finite stream from its start, each time.

    Args:
        loader: That of the stream.
    """

    def __init__(self, loader: StreamLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        self._loader.load_state_dict({})
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)
