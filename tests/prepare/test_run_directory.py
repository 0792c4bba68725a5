import shutil
from pathlib import Path

import pytest

from streamdata.prepare import PrepareError, run_directory
from tests.prepare.runs import PRETRAIN, run, tree

SMALL = PRETRAIN | {"task_bytes": 4000}


@pytest.mark.parametrize("lost", ["data", "data/task_00002", "tasks/00001.json"])
def test_what_finished_tasks_wrote_is_missed_where_it_is_gone(
    tokenizer: str, texts: str, tmp_path: Path, lost: str
) -> None:
    """Their markers are not believed, what is left stays where it is, and to begin anew helps."""
    whole = run(SMALL, tokenizer, texts, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "out")
    gone = tmp_path / "out" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    before = tree(tmp_path / "out")
    for _ in range(2):
        with pytest.raises(PrepareError, match=r"out': expected '.*/task_0000\d/.*', .*, got none\n.*--overwrite"):
            run(SMALL, tokenizer, texts, tmp_path / "out")
        assert before.items() <= tree(tmp_path / "out").items()
    assert run(SMALL, tokenizer, texts, tmp_path / "out", overwrite=True) == whole
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


class KilledError(BaseException):
    """Where the process would be killed."""


@pytest.mark.parametrize("place", ["publish", "remove", "shutil.rmtree"])
def test_a_run_killed_while_it_ends_is_finished_by_the_next(
    tokenizer: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Before its data are moved, and after."""
    whole = run(SMALL, tokenizer, texts, tmp_path / "whole")
    original = shutil.rmtree if place == "shutil.rmtree" else getattr(run_directory, place)

    def killed(path: Path, *rest: object, **options: object) -> object:
        if path.name in ("manifest.json", "data", ".work"):
            raise KilledError
        return original(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(f"streamdata.prepare.run_directory.{place}", killed)
        with pytest.raises(KilledError):
            run(SMALL, tokenizer, texts, tmp_path / "out")
    assert (tmp_path / "out" / "data").exists() is (place == "shutil.rmtree")
    assert run(SMALL, tokenizer, texts, tmp_path / "out") == whole
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_part_without_tasks_has_no_data_and_is_whole(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """However often it runs."""
    for _ in range(2):
        run(PRETRAIN, tokenizer, texts, tmp_path / "out", shard=(1, 2))
        assert not list((tmp_path / "out" / "data").iterdir())
