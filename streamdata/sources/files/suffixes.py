"""How the names of shards end that a source takes in a folder."""

from typing import Final

from streamdata.io.suffixes import JSONL_SUFFIXES, TAR_SUFFIXES
from streamdata.shards.jsonl.csv_rows import CSV_SUFFIXES
from streamdata.shards.parquet.arrow_file import ROW_SUFFIXES

SHARD_SUFFIXES: Final = {
    "streamdata.CsvDataset": CSV_SUFFIXES,
    "streamdata.JsonlIterableDataset": JSONL_SUFFIXES,
    "streamdata.MetaDistributedWebDataset": TAR_SUFFIXES,
    "streamdata.ParquetDataset": ROW_SUFFIXES,
}
"""By the target of each source with a parameter `path` of shards."""
