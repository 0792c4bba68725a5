"""Hosts of urls: which client reads a url, how it is written, and how its host has answered so far."""

from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from streamdata.io.remote.addresses import StorageOptions, bare_url, options_of
from streamdata.io.remote.requests import HostHealth
from streamdata.run.per_process import PerProcess

_WRITE_INSTEAD = {
    "rclone": "mount the remote with 'rclone mount' and name the folder, or write s3://bucket/key with "
    "storage_options: {endpoint: …} of the object store behind it",
    "boto3": "write s3://bucket/key; storage_options take endpoint, region, anonymous and profile",
}


_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


def kind_of(url: str) -> str:
    """Tell the kind of client that reads the url: web, s3, objects (obstore) or files (fsspec).

    Raises:
        ValueError: It is of another tool, or has secrets that fsspec would tell; the message says what to write.
    """
    scheme = url.partition("://")[0].lower() if "::" not in url.partition("://")[0] else ""
    if scheme in _WRITE_INSTEAD:
        what = _WRITE_INSTEAD[scheme]
        raise ValueError(f"shards: expected a url of an object store, got one of {scheme}\n  To read it, {what}.")
    kinds = {"http": "web", "https": "web", "s3": "s3", "s3a": "s3", "gs": "objects", "gcs": "objects", "az": "objects",
             "abfs": "objects", "abfss": "objects"}  # fmt: skip
    kind = kinds.get(scheme, "files")
    if kind == "web":
        with suppress(ValueError):  # it quotes the password
            urlsplit(url).port  # noqa: B018  (to ask for it is to check it)
            return kind
        raise ValueError(
            f"shards: expected the url of a web server, got '{bare_url(url)}', whose host or port is none\n"
            "  Write the host's name in ASCII or its address in brackets, and a slash in a password as %2F."
        )
    if kind == "files" and (bare := bare_url(url)) != url:  # it logs urls as they are, and quotes them in errors
        raise ValueError(
            f"shards: expected no user, password or signed query in a url that fsspec reads, got them in '{bare}'\n"
            "  Read http:// without a chain before it; for other file systems set fsspec's configuration, such as "
            "FSSPEC_FTP_USERNAME and FSSPEC_FTP_PASSWORD in the environment."
        )
    return kind


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec that reads a url, and the path in it."""
    import fsspec  # few jobs need it, and all would wait for its import

    found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    return found


def canonical_url(url: str) -> str:
    """Return the canonical spelling of an object's url."""
    scheme, _, rest = bare_url(url).partition("://")
    if kind_of(url) == "files":
        filesystem, path = file_system(url)
        return str(filesystem.unstrip_protocol(path))
    return f"{_SAME.get(scheme.lower(), scheme.lower())}://{rest}"


_healths: PerProcess[dict[tuple[str, str, StorageOptions], HostHealth]] = PerProcess(dict)
"""The hosts that this process knows; a child begins without it, since a lock may be held when it is forked."""


def health_of(url: str) -> HostHealth:
    """The health of a url's host so far; a host that was found dead is tried again after a while."""
    scheme, _, rest = url.partition("://")
    key = scheme, rest.partition("/")[0], options_of(url)
    health = _healths.get().setdefault(key, HostHealth())
    if health.is_to_be_asked_again():
        health = _healths.get()[key] = HostHealth()
    return health
