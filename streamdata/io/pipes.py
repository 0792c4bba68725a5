"""Shards that a shell command writes to its output: only where the environment allows commands."""

import subprocess

from streamdata.errors import ShardError
from streamdata.recipe.limits import PIPE, refusal_of_command


def check_allowed(url: str) -> None:
    """Raise ValueError unless the environment allows commands."""
    refusal = refusal_of_command(url)
    if refusal:
        raise ValueError(refusal)


class PipeBytes:
    """The output of a shell command; that the command fails is noticed at its end.

    Args:
        url: `pipe:` and the command.

    Raises:
        ValueError: The environment does not allow commands. It is asked here, whoever named the shard and however.
    """

    def __init__(self, url: str) -> None:
        check_allowed(url)
        self._url = url
        command = url.removeprefix(PIPE)
        self._process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE)  # noqa: S602

    def read(self, size: int = -1, /) -> bytes:
        """Some of the output, empty at its end.

        Raises:
            ShardError: The command failed.
        """
        assert self._process.stdout is not None, "the process was started with a pipe"
        piece = self._process.stdout.read(size)
        if not piece and self._process.wait() != 0:
            raise ShardError(
                f"shard '{self._url}': expected the command to succeed, got exit status {self._process.returncode}\n"
                "  Run the command in a shell to see what it says."
            )
        return piece

    def close(self) -> None:
        """End the command."""
        assert self._process.stdout is not None, "the process was started with a pipe"
        self._process.stdout.close()  # what the shell has started ends with its next write
        self._process.kill()
        self._process.wait()
