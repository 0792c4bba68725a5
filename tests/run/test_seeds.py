"""Seeds are stable over processes and machines."""

import os
import subprocess
import sys

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
