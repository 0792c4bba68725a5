"""The states of a loader as one entry of a checkpoint."""

import json
from collections.abc import Mapping
from typing import Any, Final

from streamdata.delivery.group_loader import GroupLoader
from streamdata.delivery.stream_loader import StreamLoader
from streamdata.delivery.to_device import DeviceLoader
from streamdata.errors import StateError
from streamdata.states.joining import gather_states
from streamdata.states.table import LoadedStates, table_of

_KEY: Final = "states"


class StreamState:
    """Holds the states of all ranks' loaders, for checkpoints that one rank writes for all.

        dcp.save({"model": …, "stream": StreamState(loader)}, checkpoint_id=folder)
        accelerator.register_for_checkpointing(StreamState(loader))

    There is one entry, of a fixed name, whatever the number of ranks: torch.distributed.checkpoint loads only what the
    present run asks for, and would pass over entries of ranks that it does not have. It is one text, since nested dicts
    are taken apart.

    Args:
        loader: This rank's loader: the one that the loop reads, so perhaps what `to_device` returned.
    """

    def __init__(self, loader: StreamLoader | GroupLoader | DeviceLoader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, str]:
        """Gather the states of all ranks after the batches that their loops received; call it on every rank.

        It is a copy: what is delivered while an asynchronous save writes does not change it.

        Raises:
            StateError: See `gather_states`.
        """
        loader = self._loader
        lane = loader.dataset.lane(loader.num_workers)
        joined = gather_states(loader.state_dict(), rank=lane.dp_rank, size=lane.dp_size)
        assert joined is not None, "all ranks get them"
        return {_KEY: json.dumps(dict(joined))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where all ranks stood, on any number of ranks and workers.

        Raises:
            StateError: `state_dict` holds no states, or those of another dataset.
        """
        text = state_dict.get(_KEY)
        try:
            states = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            states = None
        if not isinstance(states, dict):
            raise StateError(
                f"StreamState: expected states as text under {_KEY!r}, got one with {sorted(map(str, state_dict))}\n"
                "  Load what state_dict() of a StreamState gave; those of to_state go to the loader itself."
            )
        self._loader.load_state_dict(LoadedStates(table_of(states)))
