"""Meetings of the ranks of a run, over torch.distributed, and the name of their process group."""

import contextlib
import secrets
import sys
import weakref
from typing import Any, Final

from streamdata.errors import StateError

_GROUP_KEY: Final = "streamdata/group"


def check_can_meet(who: str, size: int) -> None:
    """Raise StateError if there are several ranks and no process group through which to exchange states.

    Raises:
        StateError: There are several ranks, and no process group.
    """
    if size > 1 and not _is_initialized():
        raise StateError(
            f"{who}: there are {size} ranks, and no process group by which they could meet\n"
            "  Call torch.distributed.init_process_group first."
        )


def gather(value: Any, dst: int | None = None) -> list[Any]:
    """Collect the values of all ranks on every rank, or only on rank `dst`."""
    if not _is_initialized():
        return [value]
    from torch import cuda, distributed

    # Objects, not tensors: what ranks give differs in length, and a rank without states gives almost nothing.
    values: list[Any] = [None] * distributed.get_world_size() if dst in (None, distributed.get_rank()) else []
    # Under NCCL objects travel by the current device, which may be another one than the group is bound to.
    bound = getattr(distributed.group.WORLD, "bound_device_id", None)
    with contextlib.nullcontext() if bound is None or bound.type != "cuda" else cuda.device(bound):
        if dst is None:
            distributed.all_gather_object(values, value)
        else:
            distributed.gather_object(value, values or None, dst=dst)
    return values


_names: "weakref.WeakKeyDictionary[Any, str | None]" = weakref.WeakKeyDictionary()
"""Names of process groups: a store may die with another rank, and is then not to be waited for."""


def group_name() -> str | None:
    """A name of the process group, equal on all its ranks and unique; None without a group.

    Whoever asks first makes it up, in the store by which the ranks have met: nobody waits for another rank.
    """
    if not _is_initialized():
        return None
    from torch import distributed

    group = distributed.group.WORLD
    if group not in _names:
        try:
            store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001  (there is no other way to it)
            _names[group] = store.compare_set(_GROUP_KEY, "", secrets.token_hex(8)).decode()
        except (RuntimeError, AttributeError):  # of MPI there is no store; or the rank that holds it has died
            _names[group] = None
    return _names[group]


def _is_initialized() -> bool:
    # Not imported: who has not imported it cannot have initialized a group.
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_available() and distributed.is_initialized())
