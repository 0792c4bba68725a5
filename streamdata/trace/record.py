"""Which record a sample was made of."""

from typing import Any

from streamdata.fields import DATASET_NAME, INDEX, KEY, URL
from streamdata.sources.source import Sample


def record_of(sample: Sample) -> dict[str, Any]:
    """Which record a sample was made of, the last one where it was made of several."""
    if URL in sample:
        return {"source": sample[DATASET_NAME], "url": str(sample[URL]), "key": sample[KEY]}
    return {"source": sample[DATASET_NAME], "index": sample.get(INDEX)}
