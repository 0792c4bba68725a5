"""nginx on 127.0.0.1, as it is where it is installed: a server that is no bottleneck, and no Python."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_CONFIGURATION = """
daemon off; {user} worker_processes 1; pid {place}/pid; error_log {place}/error.log;
events {{ worker_connections 256; }}
http {{
  log_format asked '$request_method $uri $http_range';
  access_log {place}/access.log asked; sendfile on; keepalive_requests 100000;
  client_body_temp_path {place}/1; proxy_temp_path {place}/2; fastcgi_temp_path {place}/3;
  uwsgi_temp_path {place}/4; scgi_temp_path {place}/5;
  server {{ listen 127.0.0.1:{port}; root {files}; autoindex on; }}
}}
"""


def nginx() -> str | None:
    """Where it is; as a package of Debian it is out of a user's path."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


class Served:
    """A folder at a url.

    Args:
        url: Its address.
        log: The file of what was asked.
    """

    def __init__(self, url: str, log: Path) -> None:
        self.url, self._log = url, log
        self.options = None  # of storage

    def log(self) -> list[tuple[str, str, str]]:
        """What it was asked since it was asked this: method, path, range."""
        lines = self._log.read_text().splitlines()
        self._log.write_text("")  # it is open to append
        return [(method, path[1:], asked) for method, path, asked in (line.split(" ") for line in lines)]


@contextmanager
def served_by_nginx(program: str, files: Path) -> Iterator[Served]:
    """A folder, as long as the context lasts."""
    with TemporaryDirectory() as place, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        user = "user root;" if os.geteuid() == 0 else ""  # else its workers would be nobody, who may read nothing
        configuration = Path(place) / "nginx.conf"
        configuration.write_text(_CONFIGURATION.format(place=place, port=port, files=files.resolve(), user=user))
        command = [program, "-e", f"{place}/error.log", "-c", str(configuration)]
        with subprocess.Popen(command) as process:
            try:
                _wait_for(port, process)
                yield Served(f"http://127.0.0.1:{port}", Path(place) / "access.log")
            finally:
                process.terminate()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(100):
        if process.poll() is not None:
            raise RuntimeError(f"nginx: expected it to serve, it ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError("nginx: expected it to serve, it did not within 5 s")
