"""`streamdata profile`: exit codes, one JSON document."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Streamdata = Callable[..., Result]


def test_json_is_one_document(streamdata: Streamdata, write_recipe: Callable[..., Path]) -> None:
    """Stages of each source, rates of each number of workers."""
    done = streamdata("profile", write_recipe(), "--seconds", 0.3, "--workers", 0, "--step-time", 1, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["rates"][0]["workers"] == 0
    assert document["enough_workers"] == 0
    assert {"name"} < document["sources"][0].keys()
    assert {stage["stage"] for stage in document["stages"]} <= {"read", "decode", "process", "wait", "pack", "mixing"}


@pytest.mark.parametrize("options", [["--seconds", 0], ["--workers", -1], ["--step-time", 0], ["--batch", 0]])
def test_a_wrong_call_is_usage(
    streamdata: Streamdata, write_recipe: Callable[..., Path], options: list[object]
) -> None:
    """Exit code 2."""
    assert streamdata("profile", write_recipe(), *options).exit_code == 2


def test_what_is_wrong_with_data_is_one_message(streamdata: Streamdata, write_recipe: Callable[..., Path]) -> None:
    """Exit code 1, and nothing on stdout."""
    recipe = write_recipe()
    (recipe.parent / "a.jsonl").write_text("broken\n" * 5)
    done = streamdata("profile", recipe, "--seconds", 0.3, "--workers", 0, "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Traceback" not in done.output


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal(
    streamdata: Streamdata, write_recipe: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Its sentences are wrapped; of one measurement it says nothing of more workers."""
    monkeypatch.setenv("COLUMNS", str(columns))
    done = streamdata("profile", write_recipe(), "--seconds", 0.4, "--workers", 0, "--step-time", 1e-6)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "more added little" not in done.stdout
