"""What importing streamdata adds to importing torch, as a run over tars needs it, up to its first sample."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.data import tar_shards
from tests.benchmarks.measure import Row, Scale, by_turns

_TORCH = "import torch, torch.utils.data, numpy"
_IMPORT = "from streamdata import MergedDataset, MetaDistributedWebDataset"
_FIRST = """
source = MetaDistributedWebDataset({place!r})
source.name, source.percent = "tar", 1.0
next(iter(MergedDataset([source])))
"""
_TIMED = """
import gc
from time import process_time
{before}
gc.freeze()  # else a collection of torch's million objects, some 80 ms, falls into whatever comes next
begin = process_time()
{work}
print(process_time() - begin)
"""


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """Both times, of the process, bytecode compiled and indexes built."""
    place = tar_shards(directory, scale.tar_records)
    first = _IMPORT + _FIRST.format(place=str(place))
    _seconds(_TORCH, first)
    best = by_turns(
        max(3, scale.repetitions), imported=lambda: _seconds(_TORCH, _IMPORT), sample=lambda: _seconds(_TORCH, first)
    )
    for name, what, most in ("imported", "import", 0.1), ("sample", "import, up to its first sample", 0.12):
        yield Row(
            work=f"{what}, beyond torch and NumPy, as a run over tars needs it",
            reach=f"≤ {most} s",
            got=f"{best[name]:.3f} s",
            ok=best[name] <= most,
            from_="time of the process",
        )


def _seconds(before: str, work: str) -> float:
    program = _TIMED.format(before=before, work=work)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables)
    return float(done.stdout)
