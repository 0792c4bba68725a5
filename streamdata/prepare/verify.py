"""Is a store what its run wrote: `manifest, markers, files → what is wrong`."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from streamdata.prepare.manifest import RESULTS, Json, make_manifest
from streamdata.prepare.output import sha256
from streamdata.prepare.run_directory import RunDirectory
from streamdata.stores.factory import open_store
from streamdata.stores.stored_values import SUMS, publish_sums
from streamdata.stores.verify import verify as verify_store


def verify(path: str | os.PathLike[str]) -> list[str]:
    """What is wrong with a store, or with a whole run's output; nothing where all is well.

    Of a run: its files are those of its markers, with their sizes and checksums, and its counts add up. Of any store:
    its own metadata are true, and of a run's that no id is outside the vocabulary.

    Raises:
        PrepareError: The directory holds a run that is unfinished.
        StoreError: It does not hold a store.
    """
    directory = RunDirectory(path)
    if not directory.manifest.exists():
        return verify_store(directory.path)
    manifest = directory.read_plan()
    assert manifest is not None, "it has one"
    if not directory.is_finished():
        return [f"'{directory.path}': expected a finished run, got one that is under way"]
    problems = list(_run_problems(directory, manifest))
    return problems + verify_store(directory.data, manifest["tokenizer"]["vocabulary"])


def without_sums(path: str | os.PathLike[str]) -> list[str]:
    """The files of a store, or of a run's output, that have no sums of their blocks: damage in them is not noticed."""
    directory = RunDirectory(path)
    path = directory.data if directory.manifest.exists() else directory.path
    return open_store(path, verify=False).files_without_sums()


def write_sums(files: Iterable[str]) -> None:
    """Write the sums of files beside them. Damage that a file has now is not noticed from then on.

    Raises:
        OSError: They cannot be written.
    """
    for file in files:
        publish_sums(file)


def _run_problems(directory: RunDirectory, manifest: Json) -> Iterator[str]:
    tasks = directory.finished_tasks()
    shard = manifest["shard"] or [0, 1]
    expected = list(range(shard[0], manifest["num_tasks"], shard[1]))
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
        yield from _file_problems(directory.data / name, size, digest)


def _file_problems(path: Path, size: int, digest: str) -> Iterator[str]:
    if not path.exists():
        yield f"'{path}': expected a file of {size} bytes, got none"
    elif path.stat().st_size != size:
        yield f"'{path}': expected {size} bytes, got {path.stat().st_size}"
    elif (got := sha256(path)) != digest:
        yield f"'{path}': expected the SHA-256 {digest}, got {got}"
