"""Looks at the outputs of finished runs, and joins them.

1. `manifest → summary`
2. `manifest, markers, files → what is wrong`
3. `parts → one run`, whose files are links: nothing is copied
"""

import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from streamdata.errors import PrepareError
from streamdata.prepare.output import sha256
from streamdata.prepare.run_directory import RESULTS, Json, RunDirectory, differences, make_manifest
from streamdata.stores.factory import verify as verify_store
from streamdata.stores.stored_values import SUMS


def manifest_of(path: str | Path) -> Json | None:
    """The manifest of the run that wrote a store, found in its directory or one above; None without one."""
    absolute = Path(path).absolute()
    for directory in map(RunDirectory, (absolute, *absolute.parents)):
        if directory.manifest.exists() and directory.is_finished():
            return directory.read_plan()
    return None


def summary(manifest: Json) -> str:
    """A manifest in a few lines."""
    counts: Counter[str] = Counter(manifest["counts"])
    came = f"{counts['records']:,} records in, {counts['sequences']:,} sequences out"
    trained = _percent(counts["trained"], counts["tokens"])
    lines = [f"{came}; {counts['tokens']:,} tokens, {trained} of them trained"]
    if counts["rows"]:
        full = _percent(counts["tokens"], counts["tokens"] + counts["padding"])
        padding = f"{counts['padding']:,} tokens of padding, {counts['documents_cut']:,} documents cut"
        lines.append(f"{counts['rows']:,} rows, {full} full, {padding}")
    if counts["truncated"]:
        lines.append(f"{counts['truncated']:,} sequences were longer than max_seq_len, and lost an end")
    for kind in ("dropped", "bad"):
        if manifest[kind]:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest[kind].items())
            lines.append(f"{sum(manifest[kind].values()):,} {kind}: {reasons}")
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Everything that is wrong with a store, or with a whole run's output; nothing where all is well.

    Of a run: its files are those of its markers, with their sizes and checksums, and its counts add up. Of any store:
    its own metadata are true, and of a run's that no id is outside the vocabulary.

    Raises:
        PrepareError: A file of the run is damaged.
        StoreError: It does not hold a store.
    """
    directory = RunDirectory(path)
    manifest = directory.read_plan() if directory.manifest.exists() else None
    if manifest is None:
        return verify_store(directory.path)
    if not directory.is_finished():
        return [f"'{directory.path}': expected a finished run, got one that is under way"]
    problems = list(_run_problems(directory, manifest))
    return problems + verify_store(directory.data, manifest["tokenizer"]["vocabulary"])


def _run_problems(directory: RunDirectory, manifest: Json) -> Iterator[str]:
    tasks = sorted(int(path.stem) for path in directory.tasks.glob("*[0-9].json"))
    index, count = manifest["shard"] or (0, 1)
    expected = list(range(index, manifest["num_tasks"], count))
    if tasks != expected:
        yield f"'{directory.tasks}': expected the markers of {len(expected)} tasks, got {len(tasks)}"
        return
    markers = [directory.read_marker(task) for task in tasks]
    again = make_manifest(manifest, markers)
    for key in RESULTS:
        if again[key] != manifest[key]:
            yield f"'{directory.manifest}': {key}: expected {again[key]}, as the markers have it"
    files = {name: found for marker in markers for name, found in marker["files"].items()}
    there = {str(file.relative_to(directory.data)) for file in directory.data.rglob("*") if file.is_file()}
    added = {name for name in there if name.endswith(SUMS) and name.removesuffix(SUMS) in files}
    for name in sorted(there - files.keys() - added):
        yield f"'{directory.data / name}': expected only files of this run, got one more"
    for name, (size, digest) in sorted(files.items()):
        path = directory.data / name
        if not path.exists():
            yield f"'{path}': expected a file of {size} bytes, got none"
        elif path.stat().st_size != size:
            yield f"'{path}': expected {size} bytes, got {path.stat().st_size}"
        elif (got := sha256(path)) != digest:
            yield f"'{path}': expected the SHA-256 {digest}, got {got}"


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
    plans: list[Json] = []
    for directory in directories:
        manifest = directory.read_plan()
        if manifest is None or not directory.is_finished():
            raise PrepareError(
                f"merge: '{directory.path}': expected a finished run, got none\n  Run that part to its end."
            )
        inputs = [{key: value for key, value in entry.items() if key != "digest"} for entry in manifest["inputs"]]
        plan = {key: value for key, value in manifest.items() if key not in RESULTS}
        plans.append(plan | {"inputs": inputs})
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
    target = RunDirectory(output)
    with target.opened(common, overwrite=overwrite):
        for part in directories:
            _link_tree(part.data, target.finished_data)
        for part in directories:  # last: markers say that the data are there
            _link_tree(part.tasks, target.tasks)
        return target.finish(common, list(range(common["num_tasks"])), {"merged": [str(part) for part in parts]})


def _link_tree(source: Path, target: Path) -> None:
    """Link the files of a tree. Folders are made with this process's own mode: those of a part may be read-only."""
    for folder, _, names in os.walk(source):
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                os.link(os.path.join(folder, name), place / name)
            except FileExistsError:
                continue  # a merge that was killed has linked it
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
                    raise
                raise PrepareError(
                    f"merge: '{os.path.join(folder, name)}' cannot be linked to '{place / name}': {error.strerror}\n"
                    "  Put the output on the file system of its parts, one that has hard links."
                ) from error
