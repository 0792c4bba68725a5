import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "waiting.py"


def test_it_says_how_long_a_training_waits(demo_data: Path) -> None:
    """A short one, with one worker."""
    command = [sys.executable, SCRIPT, demo_data, "images", "--steps", "2", "--workers", "1", "--batch-size", "2"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert output.startswith("images, 5 M parameters, batches of 2, 1 workers, cpu: ")
    assert "waiting for data" in output
