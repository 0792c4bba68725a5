"""S3 APIs: requests signed by Signature Version 4, as botocore does it, and lists of buckets.

<https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html>. Only host and `x-amz-` headers
are signed: others may be changed on the way.
"""

import logging
import os
import time
from contextlib import nullcontext
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode
from xml.etree import ElementTree as ET

import aiohttp

from streamdata.errors import ShardError, needs
from streamdata.io.remote.addresses import StorageOptions
from streamdata.io.remote.requests import (
    MAX_WORD,
    Answer,
    Asked,
    DeniedError,
    FailureError,
    Listed,
    Listing,
    version_of,
)
from streamdata.io.remote.web_client import Prepared, WebClient

_RENEWAL_S = 60.0
_SPACE = "{*}"  # of names in answers: any


class _Settings(NamedTuple):
    """How requests are signed, and where they go.

    Attributes:
        endpoint: Url of the API; None for that of AWS.
        region: Of buckets that have not said another one.
        credentials: As botocore finds them; None where there are none.
    """

    endpoint: str | None
    region: str
    credentials: Any


class S3Client(WebClient):
    """A Client of S3 APIs. Credentials are found at the first request, as the AWS tools find them.

    Args:
        session: The connections.
        options: Of the hosts.
    """

    follows = False

    def __init__(self, session: aiohttp.ClientSession, options: StorageOptions) -> None:
        super().__init__(session)
        self._options = options
        self._settings: _Settings | None = None
        self._renewed_at = float("-inf")
        self._regions: dict[str, str] = {}  # by bucket, as servers have said

    async def stat(self, asked: Asked) -> Answer:
        async def take(response: aiohttp.ClientResponse) -> Answer:
            if response.content_length is None:
                raise ShardError(f"{asked.describe()}: its server tells no size\n  Copy it to a disk.")
            return Answer(b"", version_of(response.headers), response.content_length)

        return await self.send(asked, take)

    async def put(self, asked: Asked) -> None:
        await self.send(asked, lambda response: response.content.read(MAX_WORD))

    async def list(self, asked: Asked) -> Listing:
        """A page of ListObjectsV2: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>."""

        async def take(response: aiohttp.ClientResponse) -> bytes:
            asked.refuse_page(response.headers)
            return await response.read()

        root, page = "/".join(asked.signed.split("/")[:3]) + "/", await self.send(asked, take)
        try:
            tree = ET.fromstring(page)  # noqa: S314  # expat bounds what entities expand to; a host is trusted so far
        except ET.ParseError as error:  # of a body without a length nothing else tells that it was cut
            raise FailureError("a list that was cut") from error
        found = []
        for entry in tree.iterfind(f"{_SPACE}Contents"):
            name, size, version = (entry.findtext(f"{_SPACE}{tag}", "") for tag in ("Key", "Size", "ETag"))
            if not name.endswith("/"):  # else it stands for a folder
                found.append(Listed(root + unquote(name), int(size or 0), version))
        folders = tree.iterfind(f"{_SPACE}CommonPrefixes/{_SPACE}Prefix")
        found += [Listed(root + unquote(folder.text or ""), 0, "") for folder in folders]
        token = tree.findtext(f"{_SPACE}NextContinuationToken")
        return Listing(found, [asked._replace(page=token)] if token else [])

    def prepare(self, asked: Asked) -> Prepared:
        self._settings = settings = self._settings or self._found()
        bucket, key = _bucket_and_key(asked)
        region = self._regions.get(bucket, settings.region)
        if settings.endpoint:
            root = f"{settings.endpoint.rstrip('/')}/{bucket}"
        elif "." in bucket:  # the certificate is for one label
            root = f"https://s3.{region}.amazonaws.com/{bucket}"
        else:
            root = f"https://{bucket}.s3.{region}.amazonaws.com"
        if asked.what == "list":
            asks = {"list-type": "2", "prefix": f"{key.removesuffix('/')}/" if key else "", "encoding-type": "url"}
            asks |= {} if asked.deep else {"delimiter": "/"}
            asks |= {"continuation-token": asked.page} if asked.page else {}
            target = f"{root}/?{urlencode(sorted(asks.items()), quote_via=quote)}"
        else:
            target = f"{root}/{quote(key, '/~-._')}"
        signed = {} if self._options.anonymous else _signed(target, region, asked, settings.credentials)
        return Prepared(target, asked.headers() | signed, settings)

    def _found(self) -> _Settings:
        """The settings, and credentials where requests are signed."""
        options, variables = self._options, os.environ
        endpoint = options.endpoint or variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL")
        region = options.region or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
        if options.anonymous:
            return _Settings(endpoint, region or "us-east-1", None)
        with needs("botocore", "s3", "reading s3:// with credentials"):
            import botocore.exceptions
            import botocore.session
        # At DEBUG it writes what it signs, session tokens included.
        logging.getLogger("botocore.auth").setLevel(logging.INFO)
        try:
            session = botocore.session.Session(profile=options.profile)
            configured = session.get_scoped_config()
        except botocore.exceptions.ProfileNotFound as error:
            raise ValueError(
                f"storage_options: profile: {error}\n  Name a profile of the AWS configuration, or leave it out."
            ) from error
        return _Settings(
            endpoint or configured.get("endpoint_url"),
            region or configured.get("region") or "us-east-1",
            session.get_credentials(),
        )

    def corrected(self, asked: Asked, used: Prepared, error: Exception, headers: Any) -> bool:
        bucket, _ = _bucket_and_key(asked)
        region = headers.get("x-amz-bucket-region")
        if region is not None and region != self._regions.get(bucket, used.settings.region):
            self._regions[bucket] = region
            return True
        if not isinstance(error, DeniedError) or self._options.anonymous:
            return False
        # Whether other credentials than those used, which were refused, may be available now.
        if used.settings is not self._settings:  # they were renewed meanwhile
            return True
        if time.monotonic() - self._renewed_at < _RENEWAL_S:
            return False
        self._renewed_at = time.monotonic()
        self._settings = None  # files, environment and roles are asked anew
        return True


def _bucket_and_key(asked: Asked) -> tuple[str, str]:
    bucket, _, key = asked.signed.partition("://")[2].partition("/")
    return bucket, key


def _signed(target: str, region: str, asked: Asked, credentials: Any) -> dict[str, str]:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    if credentials is None:
        raise ValueError(
            "reading s3://: expected credentials in the environment, a profile or a role, got none\n"
            "  Set them as for the AWS tools, or storage_options: {anonymous: true} for a public bucket."
        )
    with nullcontext() if asked.body is None else asked.body.open("rb") as data:
        request = AWSRequest(asked.method, target, data=data)
        S3SigV4Auth(credentials.get_frozen_credentials(), "s3", region).add_auth(request)
    return dict(request.headers.items())
