"""Whether what reads a stream divides it among ranks once more."""

import sys
from types import FrameType
from typing import Any, Final

_PACKAGES: Final = ("accelerate", "transformers")
_WRAPPERS: Final = {
    "DataLoaderDispatcher": "reads the stream on rank 0 alone, which has one of {} shares of it",
    "IterableDatasetShard": "keeps one batch of {} of each rank's own share, and drops the others",
}
"""How Accelerate, and HF Trainer through it, share out a stock DataLoader: as if each rank read the whole stream."""


def check_not_wrapped(dp_size: int) -> None:
    """Refuse to be read through a wrapper that divides the stream, where it is divided already.

    The wrappers have no look at the dataset that they wrap, and the dataset none at them but while they call it. Each
    time that they begin to iterate, both call `set_epoch` of it in the trainer's process, on all ranks, so that none
    waits for another that has failed. Beside that they are on the stack when `iter` is called: in the trainer without
    workers, in workers that are forked, and `IterableDatasetShard` in all.

    Raises:
        ValueError: So it is.
    """
    if dp_size == 1:
        return
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  what the inspect module itself uses
    while frame is not None:
        name = _wrapper(frame.f_locals.get("self"))
        if name is not None:
            raise ValueError(
                f"MergedDataset: Accelerate's {name} {_WRAPPERS[name].format(dp_size)}: the rest of the data would "
                "never be read\n"
                "  Write StreamLoader(dataset, batch_size, num_workers) in place of the DataLoader: `prepare` leaves "
                "it alone, and a Trainer takes it from get_train_dataloader. Or call "
                "dataset.set_data_parallel(1, 0), and the wrapper divides the whole stream."
            )
        frame = frame.f_back


def _wrapper(owner: Any) -> str | None:
    # Not isinstance: Accelerate's loaders say that they are of the class that they wrap.
    for base in type(owner).__mro__:
        if base.__name__ in _WRAPPERS and base.__module__.partition(".")[0] in _PACKAGES:
            return base.__name__
    return None
