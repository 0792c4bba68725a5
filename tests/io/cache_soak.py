"""Four ranks of two workers read a store through a cache that is smaller than the data, while another one is killed.

`python -m tests.io.cache_soak [fork|spawn|forkserver]` prints what was read and what lay on the disk; the suite has
a small one.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from streamdata import JsonlIterableDataset, MergedDataset, mixed_collate
from streamdata.io.remote.addresses import _MIN_BYTES
from tests.io.child import forked
from tests.io.servers import s3_server

RANKS, WORKERS = 4, 2


class Outcome(NamedTuple):
    """What came of it."""

    passes: list[Counter[int]]
    """How often each record was read."""
    most_bytes: int
    """Of pages, at any moment that was looked at."""


def _rank(rank: int, out: Path, passes: int, start_method: str, settings: dict[str, Any]) -> None:
    source = JsonlIterableDataset("s3://b", shuffle_buffer=20, name="s", percent=1.0, **settings)
    dataset = MergedDataset([source], cyclic=False, seed=1)
    dataset.set_data_parallel(RANKS, rank)
    for number in range(passes):
        loader: DataLoader[Any] = DataLoader(
            dataset, 4, num_workers=WORKERS, collate_fn=mixed_collate, multiprocessing_context=start_method
        )
        (out / f"{number}.{rank}").write_text(json.dumps([sample["n"] for batch in loader for sample in batch]))


def soak(folder: Path, *, records: int, start_method: str = "fork", bound: int = 2 * _MIN_BYTES) -> Outcome:
    """Let all read two passes of three shards; the one that is killed reads what rank 3 does."""
    rng, cache = random.Random(0), folder / "cache"
    rows = [b'{"n": %d, "text": "%b"}\n' % (n, rng.randbytes(15_000).hex().encode()) for n in range(3 * records)]
    shards = {f"b/{shard}.jsonl": b"".join(rows[shard::3]) for shard in range(3)}
    with s3_server(shards) as server:
        settings = {
            "storage_options": {"endpoint": server.url, "anonymous": True},
            "cache": {"path": str(cache), "max_bytes": bound},
        }
        JsonlIterableDataset("s3://b", storage_options=settings["storage_options"])  # the indexes are built
        (folder / "killed").mkdir()
        tasks = [(rank, folder, 2) for rank in range(RANKS)] + [(RANKS - 1, folder / "killed", 99)]
        *left, killed = [forked(partial(_in_group, *task, start_method, settings)) for task in tasks]
        os.setpgid(killed, killed)  # here too: on a busy machine it may not have come to that when it is killed
        most, ends = 0, time.monotonic() + (0.3 if start_method == "fork" else 6)
        while left:
            most = max(most, _bytes_below(cache))
            if killed and time.monotonic() > ends:
                os.killpg(killed, signal.SIGKILL)
                os.waitpid(killed, 0)
                killed = 0
            left = [pid for pid in left if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            if killed and not left:
                os.killpg(killed, signal.SIGKILL)
            time.sleep(0.005)
        assert not killed, "it was killed while the others read"
    found = [
        Counter(n for rank in range(RANKS) for n in json.loads((folder / f"{p}.{rank}").read_text())) for p in (0, 1)
    ]
    return Outcome(found, most)


def _in_group(*arguments: Any) -> None:
    os.setpgid(0, 0)  # so that its workers are killed with it
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    _rank(*arguments)


def _bytes_below(folder: Path) -> int:
    size = 0
    for path in folder.glob("*.shard"):
        with suppress(FileNotFoundError):
            size += 512 * path.stat().st_blocks
    return size


def main() -> None:
    """Print what came of a larger one."""
    for method in sys.argv[1:] or ["fork", "spawn", "forkserver"]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["STREAMDATA_CACHE"] = f"{folder}/indexes"
            begin, expected = time.monotonic(), Counter(range(3 * 300))
            found = soak(Path(folder), records=300, start_method=method)
            passes = [one == expected for one in found.passes]
            line = (
                f"{method}: each record once {passes}, at most {found.most_bytes:,} bytes of {2 * _MIN_BYTES:,}, "
                f"{time.monotonic() - begin:.1f} s"
            )
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
