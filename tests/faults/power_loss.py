"""Power that fails while something is published: `python -m tests.faults.power_loss`.

Each subject is written once; then each state in which a power cut may leave the disk is opened (`tests.faults.disk`):
what is read is the old, the new, or a beginning of it, or an error says that it is unfinished. It ends with an error
where something else is read, or where the work cannot be done again.
"""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamdata import DatasetFactory, StateError, StoreError, StoreWriter, load_states, save_states
from streamdata.io.file_cache import FileCache
from streamdata.shards.index.make_manifest import make_manifest, take_stock
from tests.faults.changed_files import content, rows, stream, write_jsonl
from tests.faults.disk import cuts, restore, watched
from tests.prepare.runs import PRETRAIN, documents, run, tree, write
from tests.states.test_saving import Rank
from tests.text.chat_templates import chat_tokenizer

ROWS = 16


class Subject(NamedTuple):
    """What is written, below a folder, and what is found there afterwards."""

    begin: Callable[[Path], None]
    """Before the power may fail."""
    write: Callable[[Path], None]
    look: Callable[[Path], str]
    """How what is there is to be called; an AssertionError where it is wrong."""


def nothing(_: Path) -> None:
    """There is nothing before."""


def read_rows(folder: Path) -> str:
    """The records of a folder of JSONL, whatever indexes and manifest are there."""
    found = sorted(map(content, stream("jsonl", folder)))
    num_files = len(list(folder.glob("*.jsonl")))
    assert found == sorted(map(content, rows(0) * num_files)), "other records"
    return "all records"


def index(folder: Path) -> None:
    """The index of each shard, beside it."""
    list(stream("jsonl", folder))


def make_list(folder: Path) -> None:
    """A manifest, then one of the same folder with another shard."""
    make_manifest(take_stock([str(folder)]), num_processes=1)
    (folder / "2.jsonl").write_bytes((folder / "0.jsonl").read_bytes())
    make_manifest(take_stock([str(folder)]), num_processes=1)


def look_at_list(folder: Path) -> str:
    """A manifest that is there lists what was there when it was made; made again it lists all."""
    if not (folder / "2.jsonl").exists() or (folder / "2.jsonl").stat().st_size == 0:
        (folder / "2.jsonl").unlink(missing_ok=True)  # the shard itself is not ours to keep
    elif (folder / "2.jsonl").read_bytes() != (folder / "0.jsonl").read_bytes():
        (folder / "2.jsonl").write_bytes((folder / "0.jsonl").read_bytes())
    has_list = (folder / "streamdata.manifest").exists()
    make_manifest(take_stock([str(folder)]), num_processes=1)
    read_rows(folder)
    return "a manifest" if has_list else "no manifest"


def store(storage_type: str) -> Subject:
    """A store of several shards."""

    def write_store(folder: Path) -> None:
        keys = {"sequence": "uint16"}
        with StoreWriter(storage_type, folder / "store", keys, max_tokens_per_shard=4 * ROWS // 2) as writer:
            for n in range(ROWS):
                writer.append({"sequence": np.full(4, 100 + n)})

    def look_at_store(folder: Path) -> str:
        try:
            dataset = DatasetFactory.load("seq", str(folder / "store"), 3, 4)
        except (StoreError, FileNotFoundError):
            return "unfinished"
        found = [sample["input_ids"].tolist() for sample in map(dataset.__getitem__, range(len(dataset)))]
        assert found == [[100 + n] * 3 for n in range(len(found))], "other tokens"
        assert len(found) in (ROWS // 2, ROWS), f"{len(found)} records"
        return "all shards" if len(found) == ROWS else "the first shards"

    return Subject(nothing, write_store, look_at_store)


def save(folder: Path) -> None:
    """Two steps of one rank, the second of them twice."""
    rank = Rank(0, 1)
    for step in (1, 2, 2):
        rank.take(2)
        rank.save(folder, step)


def look_at_states(folder: Path) -> str:
    """The newest step that is whole; a later one can be saved."""
    wanted, rank = [], Rank(0, 1)
    for _ in range(3):
        rank.take(2)
        wanted.append(dict(rank.states))
    try:
        states = load_states(folder)
    except (StateError, FileNotFoundError):
        found = "no step"
    else:
        found = f"step {states.step}"
        assert dict(states) in wanted, "other states"
    save_states(folder, rank.states, step=2, rank=0, size=1)
    assert dict(load_states(folder)) == dict(rank.states)
    return found


def make_files(folder: Path) -> None:
    """A file of a cache, and the digest of another."""
    (folder / "data").write_bytes(b"x" * 1000)
    cache = FileCache(str(folder / "cache"))
    cache.get("made", lambda path: path.write_bytes(b"y" * 1000))
    cache.digest(str(folder / "data"))


def look_at_files(folder: Path) -> str:
    """Made again where they are not there, and whole."""
    has_made = (folder / "cache" / "made").exists()
    found = FileCache(str(folder / "cache")).get("made", lambda path: path.write_bytes(b"y" * 1000))
    assert found.read_bytes() == b"y" * 1000
    return "a file" if has_made else "no file"


def prepared(around: Path) -> Subject:
    """A run of `prepare`, of several tasks."""
    tokenizer = around / "tokenizer"
    chat_tokenizer(around / "draft").save_pretrained(tokenizer)
    texts = write(around / "texts.jsonl", documents(12))
    config = PRETRAIN | {"task_bytes": 6000, "packing": "simple", "max_packed_len": 128}
    run(config, str(tokenizer), texts, around / "whole")
    whole = tree(around / "whole")

    def write_run(folder: Path) -> None:
        run(config, str(tokenizer), texts, folder / "out")

    def look_at_run(folder: Path) -> str:
        out, found = folder / "out", "no data"
        if (out / "data").exists():
            there = {path: data for path, data in tree(out).items() if path.startswith("data/")}
            wanted = {path: data for path, data in whole.items() if path.startswith("data/")}
            assert there == wanted, "other data"
            found = "all data"
        write_run(folder)
        assert tree(out) == whole, "another run gives other data"
        return found

    return Subject(nothing, write_run, look_at_run)


SUBJECTS = {
    "indexes": Subject(lambda folder: write_jsonl(folder, 0), index, read_rows),
    "manifest": Subject(lambda folder: write_jsonl(folder, 0), make_list, look_at_list),
    "states": Subject(nothing, save, look_at_states),
    "file cache": Subject(nothing, make_files, look_at_files),
    **{f"store {storage_type}": store(storage_type) for storage_type in ("bin", "h5", "megatron")},
}


def replay(subject: Subject, around: Path) -> Counter[str]:
    """How often what was found, over all states of the disk."""
    folder = around / "disk"
    folder.mkdir()
    os.environ["STREAMDATA_CACHE"] = str(around / "cache")
    subject.begin(folder)
    with watched(folder) as disk:
        subject.write(folder)
    found: Counter[str] = Counter()
    for files in cuts(disk):
        restore(folder, files)
        try:
            found[subject.look(folder)] += 1
        except Exception as error:
            sizes = {path: None if at is None else len(at.data) for path, at in files.items()}
            error.add_note(f"after a power cut that left {sizes}")
            raise
    return found


def main() -> None:
    """All subjects."""
    for name in sys.argv[1:] or [*SUBJECTS, "prepare"]:
        with tempfile.TemporaryDirectory() as folder:
            subject = prepared(Path(folder)) if name == "prepare" else SUBJECTS[name]
            found = replay(subject, Path(folder))
        said = ", ".join(f"{what}: {number}" for what, number in sorted(found.items()))
        print(f"{name}: {found.total()} power cuts: {said}", flush=True)


if __name__ == "__main__":
    main()
