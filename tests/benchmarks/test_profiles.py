"""Profiles name the functions of the package in which the time goes, in a process and in its workers."""

from tests.benchmarks.profiles import counts_of

MAIN = 'process 1:"python";<module> (run.py:1);'
MEASURED = f"{MAIN}measured (run.py:8);"
RAW = f"""\
{MAIN}_call_with_frames_removed (<frozen importlib._bootstrap>:241) 50
{MAIN}main (run.py:9);run (run.py:2);Mixture.draw (streamdata/mixing/mixture.py:7) 9
{MEASURED}Mixture.draw (streamdata/mixing/mixture.py:7) 4
{MEASURED}Mixture.draw (streamdata/mixing/mixture.py:9);_a.<locals>.<genexpr> (streamdata/b.py:1) 3
{MEASURED}rebuild (streamdata/delivery/collate.py:3);loads (pickle.py:1) 2
process 1:"python";process 2:"python";{MEASURED[19:]}_worker_loop (worker.py:3);_parsed (streamdata/c.py:1) 6
process 1:"python";process 2:"python";_bootstrap_inner (threading.py:9);_feed (queues.py:2) 5
process 1:"python";process 2:"python";_bootstrap_inner (threading.py:9);Condition.wait (threading.py:2) 80
{MEASURED}get (queues.py:2);_poll (connection.py:4) 70
"""


def test_a_moment_is_of_the_innermost_function_of_the_package():
    """Imports, what was before and waiting are left out; a worker's threads are the worker's."""
    found = counts_of(RAW)
    assert found[""] == {"`mixing/mixture.py: Mixture.draw`": 4, "`b.py: _a`": 3, "`delivery/collate.py: rebuild`": 2}
    assert found["workers"] == {"`c.py: _parsed`": 6, "queues and other libraries": 5}
