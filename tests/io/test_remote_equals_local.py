"""A few random streams from a server; `python -m tests.io.remote_equals_local` reads as many as it is asked for."""

import pytest

from tests.io.remote_equals_local import drawn, run
from tests.seeds import seeds


@pytest.mark.parametrize("number", seeds(6, 30))
def test_a_stream_from_a_server_is_the_local_one(tmp_path, number):
    """Samples and states, whole and resumed, under faults, by workers that are forked."""
    run(drawn(1, number, methods=("fork",)), number, tmp_path)
