"""Hosts of urls, and how requests to them are signed: `url, options → door → url and headers to send`.

S3 requests are signed by Signature Version 4, as botocore does it:
<https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html>. Only host and `x-amz-` headers
are signed: others may be changed on the way.
"""

import base64
import logging
import os
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from streamdata.errors import needs
from streamdata.io.remote.addresses import StorageOptions, bare_url
from streamdata.io.remote.requests import HostHealth
from streamdata.io.remote.web import Headers, Prepared
from streamdata.run.per_process import PerProcess

_RENEWAL_S = 60.0
_SAFE = "/~-._"
_WRITE_INSTEAD = {
    "rclone": "mount the remote with 'rclone mount' and name the folder, or write s3://bucket/key with "
    "storage_options: {endpoint: …} of the object store behind it",
    "boto3": "write s3://bucket/key; storage_options take endpoint, region, anonymous and profile",
}


_SAME = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}


class Door(Protocol):
    """Prepares and authenticates HTTP requests to one kind of host."""

    follows: bool  # redirects

    def prepare(
        self, method: str, url: str, headers: dict[str, str], query: str = "", body: Path | None = None
    ) -> Prepared:
        """Prepare a request for an object; `body` is a file to send, if any."""
        ...

    def renewed(self, used: int) -> bool:
        """Whether other credentials than the refused ones may be available now."""
        ...

    def learned(self, url: str, headers: Headers) -> bool:
        """Whether an error response says how to ask correctly, such as in which region."""
        ...


class WebDoor:
    """Prepares requests to a web server; a url's user name and password become a header."""

    follows = True

    def prepare(
        self, method: str, url: str, headers: dict[str, str], query: str = "", body: Path | None = None
    ) -> Prepared:
        assert body is None, "web servers take no files"
        parts = urlsplit(url)
        userinfo, at, host = parts.netloc.rpartition("@")
        if at:
            token = base64.b64encode(unquote(userinfo).encode()).decode()
            headers = headers | {"Authorization": f"Basic {token}"}
        return Prepared(urlunsplit((parts.scheme, host, quote(parts.path or "/", _SAFE + "%!$&'()*+,;=:@"),
                                    parts.query, "")), headers)  # fmt: skip

    def renewed(self, used: int) -> bool:
        return False

    def learned(self, url: str, headers: Headers) -> bool:
        return False


class S3Door:
    """Prepares requests to an S3 API. Credentials are found at the first request, as the AWS tools find them."""

    follows = False

    def __init__(self, options: StorageOptions) -> None:
        self._options = options
        self._lock = Lock()
        self._credentials: Any = None
        self._number = 0  # of the credentials
        self._renewed_at = float("-inf")
        self._regions: dict[str, str] = {}  # by bucket, as servers have said
        self._session: Any = None
        self._endpoint: str | None = None
        self._region = "us-east-1"

    def prepare(
        self, method: str, url: str, headers: dict[str, str], query: str = "", body: Path | None = None
    ) -> Prepared:
        with self._lock:
            self._find()
            bucket, _, key = url.partition("://")[2].partition("/")
            region = self._regions.get(bucket, self._region)
            if self._endpoint:
                root = f"{self._endpoint.rstrip('/')}/{bucket}"
            elif "." in bucket:  # the certificate is for one label
                root = f"https://s3.{region}.amazonaws.com/{bucket}"
            else:
                root = f"https://{bucket}.s3.{region}.amazonaws.com"
            target = f"{root}/{quote(key, _SAFE)}" + (f"?{query}" if query else "")
            signed = {} if self._options.anonymous else self._signed(method, target, region, body)
            return Prepared(target, headers | signed, self._number)

    def _find(self) -> None:
        """Settings, and credentials where requests are signed."""
        options = self._options
        if self._session is not None or (options.anonymous and self._endpoint):
            return
        variables = os.environ
        self._endpoint = options.endpoint or variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
        region = options.region or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
        if options.anonymous:
            self._region = region or self._region
            return
        with needs("botocore", "s3", "reading s3:// with credentials"):
            import botocore.exceptions
            import botocore.session
        # At DEBUG it writes what it signs, session tokens included.
        logging.getLogger("botocore.auth").setLevel(logging.INFO)
        try:
            self._session = botocore.session.Session(profile=options.profile)
            configured = self._session.get_scoped_config()
        except botocore.exceptions.ProfileNotFound as error:
            raise ValueError(
                f"storage_options: profile: {error}\n  Name a profile of the AWS configuration, or leave it out."
            ) from error
        self._endpoint = self._endpoint or configured.get("endpoint_url")
        self._region = region or configured.get("region") or self._region
        self._credentials = self._session.get_credentials()

    def _signed(self, method: str, target: str, region: str, body: Path | None) -> dict[str, str]:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        if self._credentials is None:
            raise ValueError(
                "reading s3://: expected credentials in the environment, a profile or a role, got none\n"
                "  Set them as for the AWS tools, or storage_options: {anonymous: true} for a public bucket."
            )
        with nullcontext() if body is None else body.open("rb") as data:
            request = AWSRequest(method, target, data=data)
            S3SigV4Auth(self._credentials.get_frozen_credentials(), "s3", region).add_auth(request)
        return dict(request.headers.items())

    def renewed(self, used: int) -> bool:
        with self._lock:
            if self._options.anonymous or used != self._number:
                return used != self._number
            if time.monotonic() - self._renewed_at < _RENEWAL_S:
                return False
            self._renewed_at = time.monotonic()
            self._number += 1
            self._session = None  # files, environment and roles are asked anew
            return True

    def learned(self, url: str, headers: Headers) -> bool:
        bucket, region = url.partition("://")[2].partition("/")[0], headers.get("x-amz-bucket-region")
        with self._lock:
            is_new = region is not None and region != self._regions.get(bucket, self._region)
            if is_new and region is not None:
                self._regions[bucket] = region
            return is_new


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
            urlsplit(url)
            return kind
        raise ValueError(
            f"shards: expected the url of a web server, got '{bare_url(url)}', whose host is none\n"
            "  Write its name in ASCII, or its address in brackets behind the password."
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


_doors: PerProcess[dict[tuple[str, StorageOptions], Door]] = PerProcess(dict)
_healths: PerProcess[dict[tuple[str, str, StorageOptions], HostHealth]] = PerProcess(dict)
"""The hosts that this process knows; a child begins without it, since a lock may be held when it is forked."""


def door_of(url: str, options: StorageOptions) -> Door:
    """The `Door` for a url of a web server or an S3 API."""
    kind = kind_of(url)
    assert kind in ("web", "s3"), kind
    # setdefault of a dict is one step, also among threads
    return _doors.get().setdefault((kind, options), WebDoor() if kind == "web" else S3Door(options))


def health_of(url: str, options: StorageOptions) -> HostHealth:
    """The health of a url's host so far; a host that was found dead is tried again after a while."""
    scheme, _, rest = url.partition("://")
    key = scheme, rest.partition("/")[0], options
    health = _healths.get().setdefault(key, HostHealth())
    if health.is_to_be_asked_again():
        health = _healths.get()[key] = HostHealth()
    return health
