"""Which record a sample was made of."""

from typing import Any

from streamdata.fields import DATASET_NAME, INDEX, KEY, URL
from streamdata.sources.source import Sample


def record_of(sample: Sample) -> dict[str, Any]:
    """Which record a sample was made of, the last one where it was made of several.

    Samples of map-style sources may bring a url and a key of their own, which nobody knows without reading them: of
    these the index is the name, whether a step is sought or read.
    """
    if INDEX in sample or URL not in sample:
        return {"source": sample[DATASET_NAME], "index": sample.get(INDEX)}
    return {"source": sample[DATASET_NAME], "url": str(sample[URL]), "key": sample[KEY]}
