import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdata.prepare import PrepareError
from streamdata.prepare.finished_runs import verify
from streamdata.prepare.run_directory import make_manifest
from streamdata.stores.factory import open_store
from streamdata.stores.stored_values import publish_sums
from tests.prepare.runs import PRETRAIN, run

CONFIG = PRETRAIN | {"task_bytes": 20_000}


@pytest.fixture(params=["bin", "h5", "megatron"])
def output(request: pytest.FixtureRequest, tokenizer: str, texts: str, tmp_path: Path) -> Path:
    """A finished run of several tasks."""
    run(CONFIG | {"format": request.param}, tokenizer, texts, tmp_path / "out")
    return tmp_path / "out"


def largest(output: Path) -> Path:
    """A file of tokens."""
    return max((path for path in (output / "data").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(output: Path) -> None:
    data = bytearray(largest(output).read_bytes())
    data[len(data) // 2] ^= 1
    largest(output).write_bytes(data)


def cut(output: Path) -> None:
    largest(output).write_bytes(largest(output).read_bytes()[:-2])


def lose(output: Path) -> None:
    largest(output).unlink()


def add(output: Path) -> None:
    (output / "data" / "more.txt").write_text("x")


def forget(output: Path) -> None:
    next((output / "tasks").iterdir()).unlink()


def miscount(output: Path) -> None:
    manifest = json.loads((output / "manifest.json").read_text())
    manifest["counts"]["tokens"] += 1
    (output / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flip, "expected the SHA-256"),
        (cut, "bytes, got"),
        (lose, "got none"),
        (add, "expected only files of this run, got one more"),
        (forget, "expected the markers of"),
        (miscount, "manifest.json': counts: expected"),
    ],
)
def test_damage_of_any_kind_is_told(output: Path, damage: Callable[[Path], None], told: str) -> None:
    """And a sound output has no problem."""
    assert verify(output) == []
    damage(output)
    assert any(told in problem for problem in verify(output))


def test_sums_that_were_added_to_an_older_run_belong_to_it(output: Path) -> None:
    """Its markers know nothing of them."""
    for sums in (output / "data").rglob("*.sums"):
        sums.unlink()
    markers = [output / "tasks" / path.name for path in sorted((output / "tasks").glob("*[0-9].json"))]
    for path in markers:
        marker = json.loads(path.read_text())
        marker["files"] = {name: found for name, found in marker["files"].items() if not name.endswith(".sums")}
        path.write_text(json.dumps(marker))
    manifest = json.loads((output / "manifest.json").read_text())
    again = make_manifest(manifest, [json.loads(path.read_text()) for path in markers])
    (output / "manifest.json").write_text(json.dumps(again))
    assert verify(output) == []
    for file in open_store(output / "data", verify=False).files_without_sums():
        publish_sums(file)
    assert verify(output) == open_store(output / "data", verify=False).files_without_sums() == []
    assert list((output / "data").rglob("*.sums"))


@pytest.mark.parametrize("name", ["manifest.json", "tasks/00000.json"])
def test_a_file_of_the_run_that_is_no_json_is_named(output: Path, name: str) -> None:
    """Its own files may be damaged too."""
    (output / name).write_text("{broken")
    with pytest.raises(PrepareError, match=f"{name}': expected a JSON object"):
        verify(output)


def test_ids_are_checked_against_the_vocabulary(output: Path) -> None:
    """The manifest knows its size."""
    manifest = json.loads((output / "manifest.json").read_text())
    manifest["tokenizer"]["vocabulary"] = 100
    (output / "manifest.json").write_text(json.dumps(manifest))
    assert verify(output)


def test_an_unfinished_run_is_told(output: Path) -> None:
    """It is no store yet."""
    (output / ".work").mkdir()
    assert verify(output) == [f"'{output}': expected a finished run, got one that is under way"]


def test_a_store_without_a_run_is_checked_too(output: Path, tmp_path: Path) -> None:
    """By what it says of itself."""
    shutil.copytree(output / "data", tmp_path / "store")
    assert verify(tmp_path / "store") == []
