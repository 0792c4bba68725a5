"""MosaicML Streaming: MDS shards through their own reader, as a map-style source.

`LocalDataset` reads any sample by its number, in this process, as a map-style source must. Shards that are compressed
or in a store are those of `StreamingDataset`: copy and decompress them first.
"""

from streaming import LocalDataset  # pip install mosaicml-streaming

from streamdata import MergedDataset, named


def make(folder: str) -> MergedDataset:
    """A mixture of one source; more of them, of any kind, go into the list."""
    return MergedDataset([named(LocalDataset(folder), name="mds", percent=1)], seed=7)
