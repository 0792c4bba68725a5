"""Real processes are killed, and go on as another number of processes."""

import random

from tests.elastic.torchrun_soak import Size, run


def test_a_killed_job_goes_on_with_other_ranks_and_workers(tmp_path):
    """Tars, JSONL, a token store and a packer: what was delivered before and after is the epoch."""
    delivered = run(tmp_path, [Size(2, 1), Size(1, 2)], random.Random(3))
    assert delivered[1] > 0
