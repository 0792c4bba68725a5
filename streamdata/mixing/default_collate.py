"""What torch's own collate does with samples: it is refused, before it fails at some field that says nothing.

A DataLoader without a `collate_fn` has `default_collate`, which would stack every field, those with the stream's state
too. Where sources have different fields, such as `__key__` and `__index__`, it ends in a KeyError before.
"""

import sys
from types import FrameType
from typing import Any, Final, NoReturn

from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from streamdata.errors import StateError
from streamdata.states.cursor import NodeKey

_FETCHES: Final = "torch.utils.data._utils.fetch"
"""The module whose code asks a dataset for the samples of a batch, and collates them."""


def refuse_default_collate() -> None:
    """Raise where the DataLoader that asks for the first sample is about to give it to `default_collate`.

    Asked by another function that gives samples to `default_collate`, torch finds in its table of types that what tells
    the state in each of them cannot be collated: the table is what torch documents for extending it.

    Raises:
        StateError: It is.
    """
    default_collate_fn_map[NodeKey] = _refuse
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  what the inspect module itself uses
    while frame is not None and frame.f_globals.get("__name__", "").startswith("streamdata."):
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == _FETCHES:
        fetcher = frame.f_locals.get("self")
        if getattr(fetcher, "collate_fn", None) is default_collate:
            _refuse()


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise StateError(
        "MergedDataset: torch's default_collate cannot make a batch of its samples, which carry the stream's state\n"
        "  Write StreamLoader(dataset, batch_size) in place of the DataLoader; or give it collate_fn=TensorCollate() "
        "for dicts of tensors, or collate_fn=mixed_collate for lists of samples."
    )
