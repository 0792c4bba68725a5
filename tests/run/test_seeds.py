"""Seeds are stable over processes and machines."""

import json
import os
import subprocess
import sys

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, named, record_rng
from streamdata.run import stable_seed

PINNED = 4171077824391534886


def test_the_hash_is_pinned():
    """A checkpoint outlives this version: the numbers may never change."""
    assert stable_seed("a", 1, (2, "b"), None) == PINNED


def test_seeds_do_not_depend_on_the_hash_seed():
    """PYTHONHASHSEED changes nothing."""
    code = "from streamdata.run import stable_seed; print(stable_seed('a', 1, (2, 'b'), None))"
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
        assert int(output) == PINNED


def test_parts_are_kept_apart():
    """Two names are not one longer name."""
    assert stable_seed("ab", "c") != stable_seed("a", "bc")


def noisy(record):
    return {**record, "noise": int(record_rng(record).integers(1000))}


@pytest.mark.parametrize(
    ("in_function", "is_shard", "expected"),
    [(True, True, [474, 13, 73]), (True, False, [474, 13, 73]), (False, True, [407, 566, 226])],
)
def test_numbers_of_a_record_are_pinned(tmp_path, in_function, is_shard, expected):
    """By its number in a process function, by file and key in a sample: wherever the file lies, nothing moves them."""
    rows = [{"n": n} for n in range(3)]
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = JsonlIterableDataset(str(tmp_path)) if is_shard else rows
    functions = {"single_process_fn": noisy} if in_function else {}
    samples = MergedDataset([named(source, name="rows", percent=1, **functions)], seed=1, cyclic=False)
    found = {sample["n"]: (sample if in_function else noisy(sample))["noise"] for sample in samples}
    assert [found[n] for n in range(3)] == expected
