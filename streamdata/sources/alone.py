"""A source that is iterated by itself: a mixture of it alone, made when it is first asked for something."""

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from streamdata.recipe.named_source import NamedSource
from streamdata.recipe.targets import import_target
from streamdata.sources.source import Sample

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Alone(NamedSource):
    """Base of sources that can be iterated alone, as `MergedDataset([source], cyclic=False)`.

    The samples, their order and states are those of that mixture. Without a name the source has its class's name there,
    and without a percent 1. A stock DataLoader reads one that has an index by that; a StreamLoader iterates it.
    """

    _own_mixture: Any = None

    def __init__(self, *attributes: Any) -> None:
        super().__init__(*attributes)
        _apart.add(self)

    def is_within_mixture(self) -> None:
        """Note that the source belongs to a mixture, which its workers will read."""
        _apart.discard(self)

    def __iter__(self) -> Iterator[Sample]:
        """Iterates its mixture, see `MergedDataset.__iter__`."""
        samples: Iterator[Sample] = iter(self.mixture())
        return samples

    def __iter_from__(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> Iterator[Sample]:
        """Iterates its mixture from states, see `MergedDataset.__iter_from__`."""
        samples: Iterator[Sample] = self.mixture().__iter_from__(states, reload_from_url_level)
        return samples

    def set_dataloader_states(self, states: Mapping[str, Any], reload_from_url_level: bool = False) -> None:
        """Set the states of the source's own mixture; see `MergedDataset.set_dataloader_states`."""
        self.mixture().set_dataloader_states(states, reload_from_url_level)

    def set_epoch(self, epoch: int | None) -> None:
        """Set the pass of the source's own mixture; see `MergedDataset.set_epoch`."""
        self.mixture().set_epoch(epoch)

    def set_data_parallel(
        self,
        dp_size: int | None = None,
        dp_rank: int | None = None,
        *,
        mesh: "DeviceMesh | None" = None,
        dims: str | Sequence[str] | None = None,
    ) -> None:
        """Set the replica of the source's own mixture; see `MergedDataset.set_data_parallel`."""
        self.mixture().set_data_parallel(dp_size, dp_rank, mesh=mesh, dims=dims)

    def verify_agreement(self) -> None:
        """Check that all ranks are about to read the same; see `MergedDataset.verify_agreement`."""
        self.mixture().verify_agreement()

    def mixture(self) -> Any:
        """The source's own mixture, which is iterated when the source is; always the same object.

        Raises:
            ValueError: Its name, percent or another attribute is not valid.
            RuntimeError: A worker asks, of a source that was given to another mixture.
        """
        if self._own_mixture is None:
            if get_worker_info() is not None and self not in _apart:  # its trainer would not hear of passes that end
                raise RuntimeError(
                    f"{type(self).__name__}: expected a source that stands by itself, got one that was given to a "
                    "mixture\n  Iterate the mixture, or build the source again."
                )
            # Not the source itself: it would hold itself, and with it all that it has open, until a collection.
            view: Alone = object.__new__(type(self))
            view.__dict__.update(self._attributes())
            # By its name, as a recipe has it: what mixes imports this room.
            mixture: Any = import_target("streamdata.MergedDataset")
            self._own_mixture = mixture([view], cyclic=False)
        # Attributes may have been set since, as a recipe does it.
        self._own_mixture.datasets[0].__dict__.update(self._attributes())
        return self._own_mixture

    def _attributes(self) -> dict[str, Any]:
        own = {name: value for name, value in self.__dict__.items() if name != "_own_mixture"}
        return {"name": type(self).__name__, "percent": 1.0, **own}

    def __copy__(self) -> "Alone":
        twin: Alone = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.__dict__.pop("_own_mixture", None)  # it counts its own passes
        if self in _apart:
            _apart.add(twin)
        group = None if self._own_mixture is None else self._own_mixture._data_parallel  # noqa: SLF001  as it is ours
        if group is not None:  # else each rank's copy would read everything
            twin.set_data_parallel(group.dp_size, group.dp_rank)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # Workers share the notes on passes that the mixture has in this process, so it must be there before they are.
        if self in _apart and get_worker_info() is None:
            self.mixture()
        return self.__dict__


class SourceAlone(Alone, IterableDataset[Sample]):
    """Base of sources that can only be iterated, as a torch IterableDataset."""


_apart: "weakref.WeakSet[Alone]" = weakref.WeakSet()
"""The sources that no mixture was given."""


def _mix_all() -> None:
    for source in list(_apart):
        with suppress(ValueError):  # raised again where it is iterated, which most never are
            source.mixture()


os.register_at_fork(before=_mix_all)
