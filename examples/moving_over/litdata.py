"""LitData: its chunks through their own reader, as a map-style source."""

from typing import Any

from streamdata import MergedDataset, named


class Chunks:
    """Samples by number. LitData's own order, shards and state are left aside: those are the mixture's."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._reader: Any = None
        self._length = len(self._opened())

    def _opened(self) -> Any:
        if self._reader is None:
            from litdata import StreamingDataset  # pip install litdata

            self._reader = StreamingDataset(self.folder, shuffle=False)
        return self._reader

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._opened()[index]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}  # each worker opens its own


def make(folder: str) -> MergedDataset:
    """A mixture of one source; more of them, of any kind, go into the list."""
    return MergedDataset([named(Chunks(folder), name="litdata", percent=1)], seed=7)
