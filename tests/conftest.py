"""What holds for all tests."""

import ctypes
import gc
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from tests.interpreters import Interpreters

# Two processes run tests, each beside its own: of threads that torch starts for each core most would wait for a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Processes of xdist have one: lines would be wrapped as for somebody who reads along.
os.environ.pop("COLUMNS", None)
# To make and remove a directory takes 0.02 ms in memory, on a disk whose journal is busy 3 ms; tests make 20,000.
MEMORY, LEAST_MEMORY = Path("/dev/shm"), 2 << 30  # noqa: S108  # bytes; in a container it may have 64 MB
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > LEAST_MEMORY:
    tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY)
FORKSERVER = multiprocessing.get_context("forkserver")
FORK_SERVER = "TESTS_FORK_SERVER"  # its address
HUGE_PAGE, MADV_COLLAPSE = 2 << 20, 25
GROWTH = 1.05  # of this process's memory, before it is looked through for pages again
PRELOADED = [
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "transformers.models.auto.tokenization_auto",
    "streamdata.mixing",
    "streamdata.prepare",
    "tests.prepare.conftest",
]
FIRST = {
    *("test_benchmarks.py", "test_blend_rule.py", "test_damaged_records.py", "test_even_ranks.py"),
    *("test_group_loader.py", "test_group_loops.py", "test_hostile.py"),
    *("test_jsonl.py", "test_killed_run.py", "test_local.py", "test_lock_step.py", "test_main.py"),
    *("test_make_plan.py", "test_manifest.py", "test_mixed.py", "test_network.py", "test_on_ray.py"),
    *("test_page_cache.py", "test_pages.py", "test_parquet.py", "test_pipeline.py", "test_plain_loop.py"),
    *("test_processes.py", "test_random_jobs.py", "test_read_ahead.py", "test_real_processes.py", "test_resume.py"),
    *("test_saving.py", "test_scheduled_mixtures.py", "test_segments.py", "test_stalls.py"),
    *("test_stateful_loader.py", "test_stream_loader.py", "test_stream_state.py", "test_tar.py"),
    *("test_template_table.py", "test_traps.py", "test_workers.py"),
}
"""Files that take longest: of two processes that begin with them neither is left with one at the end."""
# Examples of a property: few and the same each time in `make test`, many and others each time in `make test-long`.
# Neither has a deadline, which a busy machine would miss.
settings.register_profile("short", settings.get_profile("ci"), max_examples=30)
settings.register_profile("long", settings.get_profile("ci"), max_examples=500, derandomize=False)


def pytest_configure(config: pytest.Config) -> None:
    """Tests press Ctrl-C in processes that they start, which would not notice where this one was started to ignore it.

    A shell starts what it runs in the background so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Each process of a fork server would else import torch for itself, for two to three seconds.
    FORKSERVER.set_forkserver_preload(PRELOADED)
    if "PYTEST_XDIST_WORKER" in os.environ:
        use_the_fork_server_of_the_run()
    elif config.getoption("numprocesses", None):
        forkserver.ensure_running()
        os.environ[FORK_SERVER] = forkserver._forkserver._forkserver_address


def use_the_fork_server_of_the_run() -> None:
    """Processes of xdist share one, which imports for seven seconds; Python has no public way to say so."""
    server = forkserver._forkserver
    server._forkserver_address = os.environ[FORK_SERVER]
    server._forkserver_alive_fd = os.pipe()[1]  # of nothing: it lives as long as the process that started it
    server.ensure_running = resource_tracker.ensure_running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Dear files come first. Of a product marked `each_value`, those are `long` whose values all come without them."""
    items.sort(key=lambda item: item.path.name not in FIRST)
    products = defaultdict(list)
    for item in items:
        if item.get_closest_marker("each_value"):
            products[item.nodeid.partition("[")[0]].append(item)
    for rest in products.values():
        values = {item: set(enumerate(item.callspec._idlist)) for item in rest}  # one of each `parametrize`
        missing = set().union(*values.values())
        while missing:
            taken = max(rest, key=lambda item: len(values[item] & missing))
            rest.remove(taken)
            missing -= values[taken]
        for item in rest:
            item.add_marker("long")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """All that is imported to collect the tests stays: nothing of it is garbage yet."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def no_collection_walks_through_what_stays():
    """What was imported so far is there to stay: to walk through it at each collection of garbage took a minute."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def in_huge_pages() -> list[int]:
    """The most memory that this process had when it was last put into huge pages, in KiB."""
    return [0]


@pytest.fixture(autouse=True, scope="module")
def memory_lies_in_huge_pages(in_huge_pages: list[int]):
    """A fork copies an entry for each page: 30 ms for the 400 MB that all tests import, 11 ms in huge pages.

    Linux puts memory into huge pages when it is asked to, as of 6.1; elsewhere forks take what they take. To ask
    takes 50 ms, so it is done after modules that hold more than those before them.
    """
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if memory < GROWTH * in_huge_pages[0]:
        return
    in_huge_pages[0] = memory
    with suppress(OSError, AttributeError):
        madvise = ctypes.CDLL(None).madvise
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, mode, _, _, inode, *_ = line.split()
            if mode == "rw-p" and inode == "0":
                first, end = (int(address, 16) for address in place.split("-"))
                first, end = -(-first // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
                if first < end:
                    madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), MADV_COLLAPSE)


@pytest.fixture(autouse=True)
def no_recipe_was_built():
    """Each test is its own process as to what was said of unused variables."""
    module = sys.modules.get("streamdata.recipe.build")
    if module is not None:
        module._used.clear()
        module._said.clear()


def make_a_third_of_demo_data(folder: str) -> None:
    """As the script does, of every third source file: to parse, write and encode them all takes twelve seconds."""
    from examples import make_demo_data  # which few tests need

    files = make_demo_data.source_files()[::3]
    make_demo_data.source_files = lambda: files
    make_demo_data.main([folder])


@pytest.fixture(scope="session")
def demo_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Example data as its script writes it, a third of its texts: once, for all processes. Tests must not change it."""
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent  # each process has a folder of its own in that of the run
    folder = run / "demo_data"
    with FileLock(run / "demo_data.lock"):
        if not folder.exists():
            process = FORKSERVER.Process(target=make_a_third_of_demo_data, args=(str(folder),))
            process.start()
            process.join()
            assert process.exitcode == 0
    return folder


@pytest.fixture(scope="session")
def python():
    """Runs a command line of Python that imports torch, as a new interpreter would."""
    with Interpreters() as interpreters:
        yield interpreters.run


@pytest.fixture
def on_ranks(tmp_path):
    """Runs a function of the rank in two processes, or as many as are given, that meet over torch.distributed."""
    from tests.ranks import run_on_ranks  # torch is slow to import

    return partial(run_on_ranks, tmp_path)
