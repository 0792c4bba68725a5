import contextlib
import errno
import fcntl
import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata.prepare import Pipeline, PrepareError, merge, run_directory
from tests.prepare.runs import PRETRAIN, documents, interrupt, run, tree, write
from tests.text.tiny_tokenizer import save_tiny_tokenizer

SMALL = PRETRAIN | {"task_bytes": 4000}
PACKED = SMALL | {"packing": "bfd_split", "max_packed_len": 64, "max_tokens_per_shard": 1000}
WEIGHED = PACKED | {"weight_field": "id"}


@pytest.mark.parametrize(
    "config",
    [SMALL, PACKED, WEIGHED | {"format": "h5"}, SMALL | {"format": "megatron"}, SMALL | {"domain_key": "id"},
     SMALL | {"backend": "gigatoken"}],
    ids=lambda config: "-".join(str(value) for key, value in config.items() if key not in SMALL) or "plain",
)  # fmt: skip
def test_parts_merged_are_the_whole_run_byte_for_byte(tokenizer: str, texts: str, tmp_path: Path, config: dict) -> None:
    """In every format; no token is copied."""
    whole = run(config, tokenizer, texts, tmp_path / "whole")
    assert whole["num_tasks"] > 3
    parts = [tmp_path / f"part{index}" for index in range(3)]
    for index, part in enumerate(parts):
        run(config, tokenizer, texts, part, shard=(index, 3))
    assert merge(parts[::-1], tmp_path / "merged") == whole
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")
    linked = [path for path in (tmp_path / "merged" / "data").rglob("*") if path.is_file()]
    assert all(path.stat().st_nlink == 2 for path in linked)


def test_workers_write_the_same(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """Whoever is first."""
    whole = run(WEIGHED, tokenizer, texts, tmp_path / "one")
    assert run(WEIGHED, tokenizer, texts, tmp_path / "two", workers=2) == whole
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_a_finished_run_is_found_and_left_alone(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """The second time it does nothing."""
    manifest = run(SMALL, tokenizer, texts, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").rglob("*")}
    assert run(SMALL, tokenizer, texts, tmp_path / "out") == manifest
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").rglob("*")} == before


def change_config(config: dict, tokenizer: str, texts: str, folder: Path) -> tuple:
    return config | {"end_of_document": False}, tokenizer, texts


def change_tokenizer(config: dict, tokenizer: str, texts: str, folder: Path) -> tuple:
    return config, save_tiny_tokenizer(folder / "other"), texts


def change_input(config: dict, tokenizer: str, texts: str, folder: Path) -> tuple:
    write(Path(texts), documents(61))
    return config, tokenizer, texts


def add_input(config: dict, tokenizer: str, texts: str, folder: Path) -> tuple:
    return config, tokenizer, [texts, write(folder / "more.jsonl", documents(1))]


@pytest.mark.parametrize(
    ("change", "named", "is_finished"),
    [
        (change_config, "the config: end_of_document", True),
        (change_config, "the config: end_of_document", False),
        (change_tokenizer, "the tokenizer: was", False),
        (change_input, "texts.jsonl': was", True),
        (add_input, "more.jsonl': was not there, is", False),
    ],
)
def test_a_change_is_refused_unless_it_is_to_be_overwritten(
    tokenizer: str, texts: str, tmp_path: Path, change: object, named: str, is_finished: bool
) -> None:
    """Of a run that is finished, or that was interrupted."""
    out = tmp_path / "out"
    if is_finished:
        run(SMALL, tokenizer, texts, out)
    else:
        interrupt(SMALL, tokenizer, texts, out)
    before = tree(out)
    changed = change(SMALL, tokenizer, texts, tmp_path)
    with pytest.raises(PrepareError, match="expected a run of the same") as caught:
        run(*changed, out)
    assert named in str(caught.value)
    assert before.items() <= tree(out).items()
    manifest = run(*changed, out, overwrite=True)
    assert manifest == run(*changed, tmp_path / "fresh")
    assert tree(out) == tree(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("after", "config"),
    [(0, PACKED), (3, WEIGHED), (1, WEIGHED | {"format": "h5"}), (1, SMALL | {"format": "megatron"})],
    ids=["0-bin", "3-bin", "1-h5", "1-megatron"],
)
def test_an_interrupted_run_goes_on_where_it_was(
    tokenizer: str, texts: str, tmp_path: Path, after: int, config: dict
) -> None:
    """Until then nothing is there to be read; finished tasks are not done again."""
    interrupt(config, tokenizer, texts, tmp_path / "out", after)
    assert not (tmp_path / "out" / "data").exists()
    markers = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "tasks").iterdir()}
    assert len(markers) == after
    run(config, tokenizer, texts, tmp_path / "out")
    run(config, tokenizer, texts, tmp_path / "whole")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
    assert all(path.stat().st_mtime_ns == mtime for path, mtime in markers.items())


def test_a_full_disk_ends_the_run_and_the_next_finishes(
    tokenizer: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that failed leaves nothing, be it in the midst of its shards or of its marker."""
    run(PACKED, tokenizer, texts, tmp_path / "whole")
    for place in ("streamdata.stores.writer.StoreWriter.close", "streamdata.prepare.worker.publish"):
        with monkeypatch.context() as patch:
            patch.setattr(place, lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
            with pytest.raises(OSError, match="No space left"):
                run(PACKED, tokenizer, texts, tmp_path / "out")
        assert not (tmp_path / "out" / "data").exists()
        assert not list((tmp_path / "out" / "tasks").iterdir())
    run(PACKED, tokenizer, texts, tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "data"])
def test_a_directory_that_holds_something_else_is_refused(
    tokenizer: str, texts: str, tmp_path: Path, name: str, overwrite: bool
) -> None:
    """Even if it is to be overwritten; nothing of it is touched."""
    out = tmp_path / "out"
    out.mkdir()
    if name == "data":
        (out / name).mkdir()
    else:
        (out / name).write_text("{}")
    with pytest.raises(PrepareError, match=f"expected an empty directory or one of this command, got {name}"):
        run(SMALL, tokenizer, texts, out, overwrite=overwrite)
    assert [path.name for path in out.iterdir()] == [name]


@pytest.mark.parametrize("content", ["{broken", "[1]"])
def test_a_damaged_manifest_is_told(tokenizer: str, texts: str, tmp_path: Path, content: str) -> None:
    """With its place; it may be somebody else's."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(content)
    with pytest.raises(PrepareError, match=r"out/manifest.json': expected a JSON object, got"):
        run(SMALL, tokenizer, texts, tmp_path / "out")


def test_an_output_that_is_a_file_is_refused(tokenizer: str, texts: str) -> None:
    """As a directory that holds something else."""
    with pytest.raises(PrepareError, match="expected an empty directory or one of this command, got a file"):
        run(SMALL, tokenizer, texts, Path(texts))


class KilledError(BaseException):
    """Where the process would be killed."""


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_killed_while_it_takes_its_directory_can_take_it_again(
    tokenizer: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """At every step of making and clearing: the directory is never taken for somebody else's."""
    plan = run(SMALL, tokenizer, texts, tmp_path / "whole")
    was_killed = [True]
    for step in itertools.count():
        directory = run_directory.RunDirectory(tmp_path / f"out{step}")
        if overwrite:
            shutil.copytree(tmp_path / "whole", directory.path)
        with monkeypatch.context() as patch, contextlib.suppress(KilledError):
            was_killed = kill_at(patch, step)
            with directory.opened(plan, overwrite=overwrite):
                pass
        with directory.opened(plan, overwrite=overwrite):
            assert directory.read_plan() == plan
        if not was_killed:
            break
    assert step > 3


def kill_at(patch: pytest.MonkeyPatch, step: int) -> list[bool]:
    """Stop before the step-th of what a run does to its directory before it works; tells whether it came to that."""
    steps, killed = itertools.count(), []
    for place, name in ((Path, "mkdir"), (Path, "unlink"), (Path, "rename"), (run_directory, "publish")):
        original = getattr(place, name)

        def stop(*arguments: object, original: Callable = original, **options: object) -> object:
            if next(steps) == step:
                killed.append(True)
            if killed:
                raise KilledError
            return original(*arguments, **options)

        patch.setattr(place, name, stop)
    return killed


def test_two_runs_at_once_are_refused(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """The second is told to wait."""

    def again(progress: object) -> None:
        with pytest.raises(PrepareError, match="expected no other run, got one that is under way"):
            run(SMALL, tokenizer, texts, tmp_path / "out")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SMALL, tokenizer, texts, tmp_path / "out", progress=again)


def test_a_run_waits_for_those_who_are_still_at_a_task(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """Of a run that was killed: what they leave half done would be in its way."""
    interrupt(SMALL, tokenizer, texts, tmp_path / "out")
    following = threading.Thread(target=run, args=(SMALL, tokenizer, texts, tmp_path / "out"))
    with run_directory.RunDirectory(tmp_path / "out").workers_locked(fcntl.LOCK_SH):
        following.start()
        following.join(0.3)
        assert following.is_alive()
        assert not (tmp_path / "out" / "data").exists()
    following.join(30)
    assert (tmp_path / "out" / "data").exists()


def test_a_finished_run_has_nothing_of_what_killed_workers_were_writing(
    tokenizer: str, texts: str, tmp_path: Path
) -> None:
    """On a cluster, another one does the task again."""

    def leave(progress: object) -> None:
        (tmp_path / "out" / "tasks" / ".00000.json.1.0ab1.tmp").write_text("{")

    run(SMALL, tokenizer, texts, tmp_path / "out", progress=leave)
    assert not list((tmp_path / "out").rglob(".*"))


def test_the_manifest_says_what_went_in_and_came_out(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """Inputs, config, tokenizer, counts; time and host are told elsewhere."""
    manifest = run(PACKED | {"max_chars": 2000}, tokenizer, texts, tmp_path / "out")
    (source,) = manifest["inputs"]
    status = Path(texts).stat()
    assert (source["url"], source["size"], source["mtime_ns"]) == (texts, status.st_size, status.st_mtime_ns)
    assert source["digest"]
    assert manifest["config"]["packing"] == "bfd_split"
    counts = manifest["counts"]
    assert counts["records"] == 60
    assert counts["sequences"] == 60 - manifest["dropped"]["more than max_chars"]
    assert counts["rows"] * 64 > counts["tokens"] > counts["padding"] == 0
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert {"host", "seconds", "workers", "engine"} <= facts.keys()


def test_gigatoken_is_checked_on_the_input_before_anything_is_written(
    tokenizer: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On records from all over it."""
    seen = []
    monkeypatch.setattr(
        "streamdata.prepare.encode.GigatokenBackend.check", lambda _, found, locations: seen.append(locations[-1])
    )
    run(SMALL | {"backend": "gigatoken"}, tokenizer, texts, tmp_path / "out")
    assert len(seen) > 3
    assert seen[-1] == f"{texts}:60"


def test_gigatoken_is_compared_on_records_of_a_known_format_too(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their texts are no sections."""
    seen: list[str] = []
    monkeypatch.setattr("streamdata.prepare.encode.GigatokenBackend.check", lambda _, found, __: seen.extend(found))
    path = write(tmp_path / "a.jsonl", [{"text": "the cat"}])
    run({"train_type": "seq", "backend": "gigatoken"}, tokenizer, path, tmp_path / "out")
    assert seen[0] == "the cat"


def test_a_merge_takes_the_place_of_another_run_only_where_it_is_told_to(
    tokenizer: str, texts: str, tmp_path: Path
) -> None:
    """As a run does."""
    whole = run(SMALL, tokenizer, texts, tmp_path / "whole")
    run(SMALL, tokenizer, texts, tmp_path / "0", shard=(0, 1))
    run(PACKED, tokenizer, texts, tmp_path / "out")
    with pytest.raises(PrepareError, match="expected a run of the same inputs"):
        merge([tmp_path / "0"], tmp_path / "out")
    assert merge([tmp_path / "0"], tmp_path / "out", overwrite=True) == whole
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_merge_of_read_only_parts_can_be_written_to(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """Their files are linked, their folders made anew."""
    run(SMALL, tokenizer, texts, tmp_path / "0", shard=(0, 1))
    folders = [path for path in (tmp_path / "0").rglob("*") if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    merge([tmp_path / "0"], tmp_path / "out")
    assert {path.stat().st_mode & 0o200 for path in (tmp_path / "out").rglob("*") if path.is_dir()} == {0o200}
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.parametrize("parts", [[], [0], [0, 0], [0, 2]], ids=str)
def test_a_merge_needs_each_part_once(tokenizer: str, texts: str, tmp_path: Path, parts: list[int]) -> None:
    """Finished, and of the same run."""
    for index in range(3):
        run(SMALL, tokenizer, texts, tmp_path / str(index), shard=(index, 3))
    with pytest.raises(PrepareError, match="merge: expected"):
        merge([tmp_path / str(index) for index in parts], tmp_path / "out")


def test_a_merge_refuses_parts_that_are_unfinished_or_of_other_runs(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """It names them."""
    run(SMALL, tokenizer, texts, tmp_path / "0", shard=(0, 2))
    run(SMALL | {"end_of_document": False}, tokenizer, texts, tmp_path / "1", shard=(1, 2))
    with pytest.raises(PrepareError, match=r"/1': expected a part of the run of .*/0', got a change in the config"):
        merge([tmp_path / "0", tmp_path / "1"], tmp_path / "out")
    interrupt(SMALL, tokenizer, texts, tmp_path / "half")
    with pytest.raises(PrepareError, match="half': expected a finished run, got none"):
        merge([tmp_path / "0", tmp_path / "half"], tmp_path / "out")


@pytest.mark.parametrize("options", [{"workers": 0}, {"shard": (2, 2)}, {"shard": (-1, 2)}])
def test_impossible_numbers_are_refused(tokenizer: str, texts: str, tmp_path: Path, options: dict) -> None:
    """Before anything is read."""
    with pytest.raises(PrepareError, match="expected at least one worker and a shard"):
        run(SMALL, tokenizer, texts, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_config_may_come_from_a_file(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """As on the command line."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    assert Pipeline(path, tokenizer).run([texts], tmp_path / "a") == run(SMALL, tokenizer, texts, tmp_path / "b")
