from pathlib import Path

import pytest

from examples import waiting


def test_it_says_how_long_a_training_waits(
    demo_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short one, with one worker."""
    options = ["--steps", "2", "--workers", "1", "--batch-size", "2"]
    monkeypatch.setattr("sys.argv", ["waiting.py", str(demo_data), "images", *options])
    waiting.main()
    output = capsys.readouterr().out
    assert output.startswith("images, 5 M parameters, batches of 2, 1 workers, cpu: ")
    assert "waiting for data" in output
