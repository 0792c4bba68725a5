"""Python's command line in forks of a process that has imported torch, and nothing else that is not Python's own.

An interpreter that is started anew takes more than a second of a core to import torch. What is imported beside it, the
environment, what is printed, and how it ends are those of a new one.
"""

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Self

LIMIT_S = 600  # of a machine on which others work too


class Interpreters:
    """A process that has imported torch, and runs command lines in forks of itself, one after another."""

    def __enter__(self) -> Self:
        pipe, root = subprocess.PIPE, Path(__file__).parents[1]
        self.server = subprocess.Popen([sys.executable, "-m", __name__], stdin=pipe, stdout=pipe, cwd=root)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.communicate(b"\n", timeout=LIMIT_S)  # a fork of this process may hold the pipe open

    def run(
        self, *arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None, warn: str = "default"
    ) -> subprocess.CompletedProcess:
        """`python ARGUMENTS`, of which the first is `-c`, `-m` or a script, with `-W` of what warnings do."""
        line, env, cwd = [*map(str, arguments)], dict(os.environ if env is None else env), str(cwd or os.getcwd())
        with tempfile.TemporaryDirectory() as folder:
            request = {"folder": folder, "arguments": line, "env": env, "cwd": cwd, "warn": warn}
            self.server.stdin.write(json.dumps(request).encode() + b"\n")
            self.server.stdin.flush()
            status = int(self.server.stdout.readline())
            texts = [Path(folder, name).read_text() for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(line, status, *texts)


def run(folder: str, arguments: list[str], env: dict[str, str], cwd: str, warn: str) -> None:
    """What a new interpreter would do, with what it prints in files."""
    signal.alarm(LIMIT_S)
    for number, name in enumerate((os.devnull, "stdout", "stderr")):
        os.dup2(os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT, 0o644), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if warn != "default":
        warnings.simplefilter(warn)
    kind, *rest = arguments
    sys.argv = [kind, *rest] if kind != "-m" else rest
    sys.path[0] = {"-c": "", "-m": cwd}.get(kind, os.path.dirname(kind))
    if kind == "-c":
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv.pop(1)
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102  # a test's code
    elif kind == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(kind, run_name="__main__")


def serve() -> None:
    """Run what is asked for, line by line; a fork returns from here, and ends as any interpreter does."""
    import torch  # noqa: F401  # what all this is for

    gc.freeze()  # else each fork looks at all of torch once more as it ends
    while (line := sys.stdin.readline()) > "\n":
        process = os.fork()
        if not process:
            return run(**json.loads(line))
        _, status = os.waitpid(process, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return None


if __name__ == "__main__":
    serve()
