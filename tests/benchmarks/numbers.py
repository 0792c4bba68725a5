"""What counting costs: a sample's time in a mixture with and without its tokens and times counted.

`python -m tests.benchmarks.numbers` runs both in turn, in one process, and prints the difference of their medians.
"""

import statistics
import time
from itertools import islice

import numpy as np

from streamdata.mixing import mixture
from streamdata.mixing.merged import MergedDataset
from tests.streams import Numbers

SAMPLES, RUNS = 40_000, 20
IDS = np.zeros(8, np.int64)


class Tokens(Numbers):
    """Records with token ids."""

    def __getitem__(self, index):
        return {"input_ids": IDS}


class NoTokens(Numbers):
    """The same under a name that nobody counts."""

    def __getitem__(self, index):
        return {"ids": IDS}


def ns_per_sample(kind):
    """How long the lane of three sources takes for a sample."""
    stream = iter(MergedDataset([kind(name, 10_000) for name in "abc"]))
    for _ in islice(stream, 1000):
        pass
    began = time.perf_counter()
    for _ in islice(stream, SAMPLES):
        pass
    return (time.perf_counter() - began) / SAMPLES * 1e9


def clock_ns():
    """What the two readings of the clock and the sum take that time a source."""
    times, now = [0.0, 0.0], mixture.perf_counter
    began = now()
    for _ in range(SAMPLES):
        since = now()
        times[0] += now() - since
    with_clock = now() - began
    began = now()
    for _ in range(SAMPLES):
        pass
    return (with_clock - (now() - began)) / SAMPLES * 1e9


def main():
    """Print the medians."""
    pairs = [(ns_per_sample(NoTokens), ns_per_sample(Tokens), clock_ns()) for _ in range(RUNS)]
    plain, tokens, clock = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"a sample takes {plain:.0f} ns; counting its tokens {tokens - plain:.0f} ns more;")
    print(f"timing its source is {clock:.0f} ns of it: medians of {RUNS} alternating runs of {SAMPLES:,} samples")


if __name__ == "__main__":
    main()
