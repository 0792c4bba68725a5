"""Peers in an environment of their own: `.venv-peers`, which `make bench` fills, or what STREAMDATA_PEERS names."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PYTHON = Path(os.environ.get("STREAMDATA_PEERS", Path(__file__).parents[2] / ".venv-peers")) / "bin" / "python"
_LOOPS = Path(__file__).with_name("peer_loops.py")
_TIMEOUT_S = 600


class MissingPeerError(Exception):
    """A peer does not run here; its text says why."""


def asked(script: Path, *arguments: str) -> str:
    """What a script of the peers' environment prints.

    Raises:
        MissingPeerError: It does not run.
    """
    done = subprocess.run(_command(script, *arguments), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise MissingPeerError(f"not installed, or it failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def _command(script: Path, *arguments: str) -> list[str]:
    if not PYTHON.exists():
        raise MissingPeerError("not installed: `make bench` makes its environment")
    return [str(PYTHON), "-P", str(script), *arguments]  # -P: our modules beside it are not for its packages


def write(what: str, place: Path, source: Path) -> None:
    """Write our tars or tokens in litdata's format.

    Raises:
        MissingPeerError: litdata does not run here.
    """
    asked(_LOOPS, "write", what, str(place), str(source))


class Peer:
    """A process that reads as a peer does, and says how long it took."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def time(self, name: str, place: Path, **options: Any) -> float:
        """Seconds of one run of a function of `peer_loops`, without what it takes to make the dataset.

        Raises:
            MissingPeerError: It ended with an error.
        """
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None
        assert answers is not None
        asks.write(json.dumps({"name": name, "place": str(place), **options}) + "\n")
        asks.flush()
        for line in answers:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise MissingPeerError(f"{name} does not run: its process ended with {self._process.wait()}")


@contextmanager
def optional_peer() -> Iterator[Peer | None]:
    """A process of the peers' environment, for runs by turns with ours; None where there is none."""
    if not PYTHON.exists():
        yield None
        return
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(_command(_LOOPS, "serve"), text=True, **pipes) as process:
        try:
            yield Peer(process)
        finally:
            process.kill()
