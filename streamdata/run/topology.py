"""Who reads: the data-parallel rank of this process, the lane of a worker; and its share of a node's connections."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

from streamdata.errors import shown

MAX_WORKERS: Final = 256
"""DataLoader workers of one rank."""
MAX_RANKS: Final = 1 << 17
"""More than any job has; a number in damaged states, or one that was mistyped, must not become a list of so many."""
MAX_CONNECTIONS: Final = 64
"""Requests that a process has in flight; of a node, where nothing else is said."""
_FEWEST_CONNECTIONS: Final = 4
_VARIABLE: Final = "STREAMDATA_CONNECTIONS"

_DATA: Final = frozenset(("batch", "data", "ddp", "dp", "dp_replicate", "dp_shard"))
_MODEL: Final = frozenset(("cp", "model", "pp", "sp", "tp"))
"""Names in frameworks of a mesh's dimensions along which ranks read other samples, and the same ones."""
_MIXED: Final = frozenset(("efsdp", "ep", "etp", "fsdp", "hsdp", "loss"))
"""Names of dimensions that have, or may have, ranks of both kinds: torchtitan's `fsdp` is `dp_shard` and `cp`. So have
those that were joined and named by both, such as `dp_shard_cp`."""


@dataclass(frozen=True, kw_only=True)
class DataParallel:
    """The data-parallel group: `dp_size` replicas, of which this process is number `dp_rank`, from 0.

    Raises:
        ValueError: `dp_size` is below 1 or above `MAX_RANKS`, or `dp_rank` is not in [0, dp_size).
    """

    dp_size: int
    dp_rank: int

    def __post_init__(self) -> None:
        if not (0 <= self.dp_rank < self.dp_size <= MAX_RANKS):
            raise ValueError(
                f"data parallel: expected 0 <= dp_rank < dp_size <= {MAX_RANKS}, got dp_rank={self.dp_rank}, "
                f"dp_size={self.dp_size}\n  Ranks count from 0; pass both to set_data_parallel(dp_size, dp_rank)."
            )


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One (data-parallel rank, DataLoader worker) pair; lane `index` of `count`."""

    dp_size: int
    dp_rank: int
    num_workers: int
    worker: int

    @property
    def index(self) -> int:
        """The lane's number among all lanes: `rank * num_workers + worker`."""
        return self.dp_rank * self.num_workers + self.worker

    @property
    def count(self) -> int:
        """The number of lanes of the run."""
        return self.dp_size * self.num_workers


def distributed_if_joined() -> Any:
    """The module torch.distributed if this process is in a process group, else None."""
    # Not imported: who has not imported it cannot have initialized a group.
    distributed = sys.modules.get("torch.distributed")
    is_joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_joined else None


def find_data_parallel() -> DataParallel:
    """Find this process's data-parallel group: by torch.distributed, else RANK and WORLD_SIZE, else one replica.

    Must be called in the trainer's process: a spawned worker has no process group.

    Raises:
        ValueError: WORLD_SIZE is above 1 and RANK is missing, or one of them is not an integer.
    """
    if distributed := distributed_if_joined():
        return DataParallel(dp_size=distributed.get_world_size(), dp_rank=distributed.get_rank())
    dp_size = _integer_from_environment("WORLD_SIZE", 1)
    if dp_size > 1 and "RANK" not in os.environ:
        raise ValueError(
            f"data parallel: WORLD_SIZE is {dp_size} but RANK is not set\n"
            "  Launch with torchrun, or call set_data_parallel(dp_size, dp_rank)."
        )
    return DataParallel(dp_size=dp_size, dp_rank=_integer_from_environment("RANK", 0) if dp_size > 1 else 0)


def data_parallel_of(mesh: "DeviceMesh", dims: str | Sequence[str] | None) -> DataParallel:
    """Find this process's data-parallel group in a DeviceMesh; ranks along other dimensions share a number.

    Args:
        mesh: Has this process in it.
        dims: The names of its data-parallel dimensions. None takes those of the usual names; or the one dimension of a
            mesh, unless its name is of one along which ranks read, or may read, the same.

    Raises:
        ValueError: A dimension is not in the mesh, or it is not clear which are data-parallel.
    """
    names = mesh.mesh_dim_names or ()
    wanted: set[str | None] | None
    if dims is not None:
        wanted = {dims} if isinstance(dims, str) else set(dims)
    elif mesh.ndim == 1 and not any(name in _MIXED or _MODEL & {*name.split("_")} for name in names):
        wanted = {*names} or {None}
    else:
        wanted = _data_dims(mesh)
    if wanted is None:
        raise ValueError(
            f"data parallel: it is not clear which of the mesh's dimensions {tuple(names)} are data-parallel\n"
            "  Name them: set_data_parallel(mesh=mesh, dims=(…)), if ranks along them read other samples; or give a "
            "submesh of these alone, such as mesh['dp'], or with torchtitan mesh['batch']."
        )
    if not wanted or not wanted <= {*names, None}:
        raise ValueError(
            f"data parallel: expected dims to be some of the mesh's dimensions {tuple(names)}, got {shown(dims)}\n"
            "  Name those along which ranks read other samples, such as dims=('dp_replicate', 'dp_shard'); where all "
            "read the same, call set_data_parallel(1, 0)."
        )
    size, rank = 1, 0
    for name, extent, coordinate in zip(names or (None,) * mesh.ndim, mesh.shape, _coordinates(mesh), strict=True):
        if name in wanted:
            size, rank = size * extent, rank * extent + coordinate
    return DataParallel(dp_size=size, dp_rank=rank)


def members_of(mesh: "DeviceMesh") -> list[int]:
    """The processes of a DeviceMesh that read the same samples as this one, as ranks of the default process group.

    Raises:
        ValueError: It is not clear which of its dimensions are data-parallel.
    """
    names, wanted = mesh.mesh_dim_names or (), _data_dims(mesh)
    if wanted is None:
        raise ValueError(
            f"GroupLoader: it is not clear which of the mesh's dimensions {tuple(names)} are data-parallel\n"
            f"  Give one whose dimensions have names among {sorted(_DATA | _MODEL)}, such as mesh['cp', 'tp']; or the "
            "process group of the ranks that read the same."
        )
    where = zip(names, _coordinates(mesh), strict=True)
    members: list[int] = (
        mesh.mesh[tuple(at if name in wanted else slice(None) for name, at in where)].flatten().tolist()
    )
    return members


def _data_dims(mesh: "DeviceMesh") -> set[str | None] | None:
    """The data-parallel dimensions of a mesh, by their names; None where some name does not say what it is."""
    names = mesh.mesh_dim_names or ()
    return {name for name in names if name in _DATA} if names and {*names} <= _DATA | _MODEL else None


def _coordinates(mesh: "DeviceMesh") -> Sequence[int]:
    """Where this process is in a mesh."""
    coordinates = mesh.get_coordinate()
    if coordinates is None:
        raise ValueError(
            "data parallel: this process is not in the mesh\n  Give a mesh that has all processes that read."
        )
    return coordinates


def connections_of_process(connections: Any = None) -> int:
    """The number of requests that this process may have in flight.

    Args:
        connections: Of a node, shared by its ranks and their workers; None takes that of the environment, or 64.

    Raises:
        ValueError: It is not a whole number above 0.
    """
    who, text = "connections", os.environ.get(_VARIABLE, str(MAX_CONNECTIONS))
    if connections is None:
        who, connections = f"{_VARIABLE} in the environment", int(text) if text.isdecimal() else text
    if type(connections) is not int or connections < 1:
        raise ValueError(f"{who}: expected a whole number above 0, got {shown(connections)}\n  Leave it out for 64.")
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    data = sys.modules.get("torch.utils.data")  # who has not imported it is no worker
    info = data.get_worker_info() if data is not None else None
    sharers = (int(ranks) if ranks.isdigit() else 1) * (1 if info is None else int(info.num_workers))
    return min(MAX_CONNECTIONS, max(min(_FEWEST_CONNECTIONS, connections), connections // max(1, sharers)))


def _integer_from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"data parallel: expected an integer in {name}, got {shown(text)}\n  Set it, or unset it."
        ) from None


_at_fork: list[DataParallel | ValueError] = []
"""The group as the parent saw it when it forked: in a worker, a worker_init_fn may have changed it since."""


def _remember() -> None:
    try:
        _at_fork[:] = [find_data_parallel()]
    except ValueError as error:  # raised where the group is asked for, which most forked processes never do
        _at_fork[:] = [error]


def remember_data_parallel_at_fork() -> None:
    """Pass the parent's data-parallel group to processes forked from now on. Calling it again changes nothing."""
    if not _at_fork:
        _remember()
        os.register_at_fork(before=_remember)


def data_parallel_at_fork() -> DataParallel:
    """The data-parallel group that the parent of this forked process was in.

    Raises:
        ValueError: The error that `find_data_parallel` raised in the parent.
    """
    assert _at_fork, "remember_data_parallel_at_fork() was not called before the fork"
    (found,) = _at_fork
    if isinstance(found, ValueError):
        raise found
    return found
