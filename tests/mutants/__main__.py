"""Prints what the tests miss: `python -m tests.mutants [--only FILE] [--seed N] [--count N]`."""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import hypothesis  # noqa: F401 (imported once, for all processes that are forked)
import numpy as np  # noqa: F401
import pytest
import torch.utils.data  # noqa: F401
import webdataset  # noqa: F401

from tests.mutants.judged import ALIKE, JUDGED
from tests.mutants.operators import Mutant, compiles_alike, mutants_of

ROOT = Path(__file__).parents[2]
MODULES = (
    "mixing/*.py",
    "states/*.py",
    "stores/datasets/blend*.py",
    "sources/order/*.py",
    "sources/functions/*.py",
    "shards/tar/*.py",
    "run/seeds.py",
)
ELASTIC = ("elastic/test_traps.py", "elastic/test_saved_rests.py", "elastic/test_random_jobs.py")
SUITES = {
    "stores/datasets/": ("stores/blend/test_blend_*.py", "stores/blend/test_blend*.py"),
    "mixing/c": (
        "mixing/test_ties.py",
        "mixing/test_clock.py",
        "mixing/test_states.py",
        *ELASTIC,
        "delivery/test_set_weights.py",
        "mixing/test_*.py",
    ),
    "mixing/": (
        "mixing/test_ties.py",
        "mixing/test_[es]*.py",
        "mixing/test_pins.py",
        *ELASTIC,
        "delivery/test_set_weights.py",
        "sources/test_skip.py",
        "sources/test_cached_shards.py",
        "states/test_gather.py",
        "mixing/test_*.py",
    ),
    "states/": (
        "states/test_*.py",
        "mixing/test_states.py",
        "mixing/test_pins.py",
        "delivery/test_set_weights.py",
        "delivery/test_group_loader.py",
        "ledger/test_states.py",
        "tools/cli/test_state.py",
        *ELASTIC,
        "tools/trace/test_*.py",
        "mixing/test_*.py",
    ),
    "sources/order": (
        "sources/test_order.py",
        "sources/test_dealing.py",
        "sources/test_cut.py",
        "sources/test_part*.py",
        "sources/test_skip.py",
        *ELASTIC,
        "mixing/test_pins.py",
        "sources/test_map_style.py",
        "states/test_checked.py",
        "mixing/test_*.py",
        "tools/trace/test_[lt]*.py",
    ),
    "sources/functions": (
        "sources/test_process_*.py",
        "sources/test_starts.py",
        "sources/test_skip.py",
        *ELASTIC,
        "mixing/test_yield*.py",
        "mixing/test_bad_input.py",
        "mixing/test_*.py",
        "tools/trace/test_lock_step.py",
    ),
    "shards/": ("sources/test_webdataset.py", "shards/test_sidecar.py", "shards/test_tar*.py", "shards/test_*.py"),
    "run/": (
        "run/test_permutation.py",
        "run/test_seeds.py",
        "mixing/test_pins.py",
        "mixing/test_read_again.py",
        "sources/test_shard_sources.py",
    ),
}
"""By the beginning of a module's path, the first that fits: its tests, from those that are quick to fail."""
LAST = {
    "stores/blend/test_blendable.py",
    "sources/test_shard_sources.py",
    "shards/test_jsonl.py",
    "shards/test_urls.py",
}
"""Slow, or know little of what is changed: only asked when all others are content."""
OF_PROCESSES = {"mixing/test_workers.py": ("mixing/control.py", "mixing/merged.py")}
"""These start many processes, and are asked last, and only about some modules."""
OF_THREADS = "tests/mixing/test_places.py::test_a_process_forked_from_one_whose_torch_has_threads_makes_its_own"
"""Waits for ever where the tests' own process is forked, as here: torch's threads were its parent's."""
QUIET_S = 40
"""A mutant hangs when no test ends for so long."""
MAX_MEMORY = 6 << 30
NO_TESTS = 100
"""The exit code where pytest itself failed."""
IMPORTED = "ignore:Module already imported"
"""Pytest's warning about plugins that were imported before the tests' process was forked."""


class Verdict(NamedTuple):
    """What became of a mutant."""

    word: str
    why: str
    seconds: float


def sources(only: str | None) -> dict[str, str]:
    """The modules by their paths below the package."""
    package = ROOT / "streamdata"
    paths = [path for pattern in MODULES for path in sorted(package.glob(pattern))]
    names = {path.relative_to(package).as_posix(): path for path in paths}
    return {name: path.read_text() for name, path in names.items() if only is None or name.endswith(only)}


def suite(tree: Path, path: str) -> list[str]:
    """The test files of a tree for a module, each once, in the order in which they are run."""
    patterns = next(patterns for start, patterns in SUITES.items() if path.startswith(start))
    tests = tree / "tests"
    found = [file for pattern in patterns for file in sorted(tests.glob(pattern))]
    names = dict.fromkeys(file.relative_to(tests).as_posix() for file in found)
    of_blend = path.startswith("mixing/blend")
    fitting = [name for name in names if name.startswith("mixing/test_blend") is of_blend]
    fitting = [name for name in fitting if path in OF_PROCESSES.get(name, (path,))]
    return [f"tests/{name}" for name in sorted(fitting, key=(LAST | OF_PROCESSES.keys()).__contains__)]


def drawn(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """As many of each operator, as far as there are; more of the same seed begin with the fewer."""
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_operator.setdefault(mutant.operator, []).append(mutant)
    for operator, some in by_operator.items():
        random.Random(f"{seed} {operator}").shuffle(some)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(by_operator.values()):
        chosen += [by_operator[operator].pop() for operator in sorted(by_operator) if by_operator[operator]]
    return chosen[:count]


def run_tests(tree: Path, files: list[str]) -> Verdict:
    """Run the tests in the copied tree until one fails or hangs."""
    temporary, log = tree.parent / "tmp", tree.parent / "log"
    temporary.mkdir()
    log.touch()
    began = time.monotonic()
    process = os.fork()  # what is heavy is imported already
    if not process:
        _become_tests(tree, files, temporary, log)
    status = _ended(process, log)
    shutil.rmtree(temporary, ignore_errors=True)
    text, seconds = log.read_text(errors="replace"), time.monotonic() - began
    log.unlink()
    code = None if status is None else os.waitstatus_to_exitcode(status)
    if code == pytest.ExitCode.OK:
        return Verdict("survived", "", seconds)
    # A mutant that cannot even be imported is a usage error to pytest, where a conftest.py imports that.
    is_unusable = code == pytest.ExitCode.USAGE_ERROR and "while loading conftest" not in text
    assert not is_unusable, text
    assert code not in (pytest.ExitCode.NO_TESTS_COLLECTED, NO_TESTS), text
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    by = failed[0].split(" - ")[0].split("tests/")[-1] if failed else f"exit code {code}"
    hung = f"no test ended in {QUIET_S} s after: {(text.splitlines() or [''])[-1]}"
    return Verdict("killed", hung if code is None else by, seconds)


def _become_tests(tree: Path, files: list[str], temporary: Path, log: Path) -> NoReturn:
    """Turn this forked process into pytest, in a session of its own, which knows the copied tree alone."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
        with log.open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(tree)
        os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(temporary)), PYTHONPATH=str(tree))
        tempfile.tempdir = None
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("streamdata", "tests")]:
            del sys.modules[name]
        # What is `long` too, and a hundred examples.
        thorough = ["-m", "", "--hypothesis-profile=ci", f"--deselect={OF_THREADS}"]
        os._exit(pytest.main(["-x", "-v", "--tb=no", "-p", "no:cacheprovider", "-W", IMPORTED, *thorough, *files]))
    except BaseException:
        traceback.print_exc()
    os._exit(NO_TESTS)


def _ended(process: int, log: Path) -> int | None:
    """Wait for the tests; return their status, or None if they hang. Nothing of theirs lives on."""
    size, since, ended, status = 0, time.monotonic(), 0, 0
    try:
        while not ended and time.monotonic() - since < QUIET_S:
            time.sleep(0.05)
            ended, status = os.waitpid(process, os.WNOHANG)
            if (now := log.stat().st_size) != size:
                size, since = now, time.monotonic()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if not ended:
            os.waitpid(process, 0)
    return status if ended else None


def judge(mutant: Mutant, source: str, tree: Path) -> Verdict:
    """Put the mutant into the copied tree, test it, and put the source back."""
    changed = mutant.apply(source)
    if compiles_alike(source, changed):
        return Verdict("equal", "compiles to the same code", 0)
    if (why := JUDGED.get((mutant.path, *mutant.lines(source)))) is not None:
        return Verdict("equal", why, 0)
    file = tree / "streamdata" / mutant.path
    file.write_text(changed)
    try:
        return run_tests(tree, suite(tree, mutant.path))
    finally:
        file.write_text(source)


def main() -> int:
    """Test the mutants; 1 if one survived, 2 if the tests fail without any."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", help="the end of one module's path, such as mixing/clock.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--start", type=int, default=0, help="pass over so many of those drawn: a run in steps")
    options = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)  # of mutants that are compiled here to see whether they can be
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy is removed, and the tests end
    modules = sources(options.only)
    every = [mutant for path, source in modules.items() for mutant in mutants_of(path, source)]
    found = Counter((mutant.path, *mutant.lines(modules[mutant.path])) for mutant in every)
    for key in JUDGED:
        if key[0] in modules and found[key] != (expected := ALIKE.get(key[1], 1)):
            print(f"{found[key]} mutants, expected {expected}: mend or remove it in judged.py: {': '.join(key)}")
    chosen = drawn(every, options.seed, options.count)
    print(f"{len(chosen)} of {len(every)} mutants of {len(modules)} modules, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied_tree(Path(folder) / "tree")
        suites = dict.fromkeys(file for path in sorted({m.path for m in chosen}) for file in suite(tree, path))
        whole = run_tests(tree, list(suites))
        if whole.word != "survived":
            print(f"without any mutant the tests fail: {whole.why}")
            return 2
        print(f"without any mutant the tests pass in {whole.seconds:.0f} s", flush=True)
        return report(chosen[options.start :], modules, tree)


def copied_tree(tree: Path) -> Path:
    """A copy of what git knows or does not ignore, to be changed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def report(chosen: list[Mutant], modules: dict[str, str], tree: Path) -> int:
    """Judge one mutant after another and print what became of each, then how many of each there were."""
    counts: Counter[tuple[str, str]] = Counter()
    for number, mutant in enumerate(chosen, 1):
        source = modules[mutant.path]
        word, why, seconds = judge(mutant, source, tree)
        counts[mutant.operator, word] += 1
        before, after = mutant.lines(source)
        print(f"{number:4} {word:8} {mutant.path}:{mutant.line} {mutant.operator}, {seconds:.0f} s, {why}")
        print(f"       {before}\n       {after}", flush=True)
    words = ("killed", "survived", "equal")
    for operator in sorted({operator for operator, _ in counts}):
        print(f"{operator:14}" + "".join(f"{counts[operator, word]:6} {word}" for word in words))
    print(f"{'all':14}" + "".join(f"{sum(counts[key] for key in counts if key[1] == word):6} {word}" for word in words))
    return int(any(word == "survived" for _, word in counts))


if __name__ == "__main__":
    sys.exit(main())
