"""Joining the outputs of a run's parts: their files become links, nothing is copied."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from streamdata.prepare.errors import PrepareError
from streamdata.prepare.manifest import RESULTS, Json, differences
from streamdata.prepare.run_directory import RunDirectory


def merge(parts: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str], *, overwrite: bool = False) -> Json:
    """Join the outputs of `--shard 0/n` to `--shard (n-1)/n` into that of one run, byte for byte.

    Args:
        parts: The directories, in any order. They stay as they are, and share their files with the output.
        output: A directory on the same file system.
        overwrite: Start again, whatever an earlier run has written to `output`.

    Returns:
        The manifest.

    Raises:
        PrepareError: A part is missing, unfinished, given twice, or of another run.
    """
    directories = [RunDirectory(part) for part in parts]
    plan = _common_plan(directories)
    target = RunDirectory(output)
    with target.opened(plan, overwrite=overwrite):
        for part in directories:
            _link_tree(part.data, target.finished_data)
        for part in directories:
            _link_tree(part.tasks, target.tasks)  # last: markers say that the data are there
        return target.finish(plan, list(range(plan["num_tasks"])), {"merged": [str(part) for part in parts]})


def _common_plan(directories: Sequence[RunDirectory]) -> Json:
    """The plan of the whole run."""
    plans = [_plan_of(directory) for directory in directories]
    if not plans:
        raise PrepareError("merge: expected the outputs of all parts, got none")
    common = plans[0] | {"shard": None}
    for directory, plan in zip(directories, plans, strict=True):
        if found := differences(plan | {"shard": None}, common):
            raise PrepareError(
                f"merge: '{directory.path}': expected a part of the run of '{directories[0].path}', "
                f"got a change in {'; '.join(found)}\n  Merge parts of one run."
            )
    got = sorted(tuple(plan["shard"] or (0, 1)) for plan in plans)
    if got != [(index, len(plans)) for index in range(len(plans))]:
        shown = ", ".join(f"{index}/{count}" for index, count in got)
        raise PrepareError(f"merge: expected each of the parts 0/n to (n-1)/n once, got {shown}\n  Name all of them.")
    return common


def _plan_of(directory: RunDirectory) -> Json:
    manifest = directory.read_plan()
    if manifest is None or not directory.is_finished():
        raise PrepareError(f"merge: '{directory.path}': expected a finished run, got none\n  Run that part to its end.")
    inputs = [{key: value for key, value in entry.items() if key != "digest"} for entry in manifest["inputs"]]
    return {key: value for key, value in manifest.items() if key not in RESULTS} | {"inputs": inputs}


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for folder, _, names in os.walk(source):
        directory = target / Path(folder).relative_to(source)
        directory.mkdir(exist_ok=True)
        for name in names:
            if not (directory / name).exists():  # else a merge that was killed has linked it
                _link(Path(folder, name), directory / name)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
            raise
        raise PrepareError(
            f"merge: '{source}' cannot be linked to '{target}': {error.strerror}\n"
            "  Put the output on the file system of its parts, one that has hard links."
        ) from error
