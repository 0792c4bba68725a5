"""Randomness that a resume repeats."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from streamdata.errors import names_text
from streamdata.fields import CURSOR, INDEX, KEY, SEED, URL
from streamdata.run import stable_seed


def record_rng(record: Mapping[str, Any]) -> np.random.Generator:
    """Return a random generator of this record alone, in this epoch.

    It is seeded by the source's order in the present epoch (which the recipe's seed, the source's path of names and
    the epoch determine) and the record's index, or url and key, in the source. A process function that draws from it
    alone returns the same on resume, in any lane. With the global generators of random, numpy and torch it does not:
    they know nothing of what was delivered.

    Args:
        record: What a process function was given.

    Raises:
        ValueError: The record does not come from a source of a MergedDataset.
    """
    if SEED not in record or not (record.keys() & {INDEX, URL, CURSOR}):
        raise ValueError(
            "record_rng: expected a record as it was given to a process function, got the fields "
            f"{names_text(record)}\n"
            "  Call it before fields whose names begin with '__' are removed."
        )
    identity = record.get(INDEX, record.get(CURSOR))
    if not isinstance(identity, int):
        # A sample of a merged stream: its cursor says where the lane stands, not which record it is.
        # The shard's file name alone: shards may be moved to another directory or bucket between runs.
        identity = (PurePosixPath(record.get(URL, "")).name, record.get(KEY))
    return np.random.Generator(np.random.PCG64(stable_seed(record[SEED], identity)))
