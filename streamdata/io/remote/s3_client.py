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
    Asked,
    DeniedError,
    FailureError,
    Listed,
    Listing,
    Stat,
    promise,
    range_headers,
)
from streamdata.io.remote.web_client import Prepared, WebClient, whole

_RENEWAL_S = 60.0
_SAFE = "/~-._"
_SPACE = "{*}"  # of names in answers: any
_MAX_PUT = 5 << 30  # bytes that S3 takes in one request


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

    async def stat(self, asked: Asked) -> Stat:
        async def take(response: aiohttp.ClientResponse) -> Stat:
            found = promise(asked, response.status, response.headers)
            if found.size is None:
                raise ShardError(f"{asked.describe()}: its server tells no size\n  Copy it to a disk.")
            return Stat(found.size, found.version)

        return await self.send("HEAD", asked, take)

    async def put(self, asked: Asked) -> None:
        assert asked.body is not None, "nothing is to be written"
        if (size := asked.body.stat().st_size) > _MAX_PUT:
            raise ShardError(
                f"{asked.describe()}: expected at most {_MAX_PUT} bytes, which can be written in one step, got {size}\n"
                "  Write it to a disk, and copy it there by a tool that sends it in parts."
            )
        await self.send("PUT", asked, lambda response: response.content.read(MAX_WORD))

    async def list(self, asked: Asked) -> Listing:
        """A page of ListObjectsV2: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>."""
        scheme, bucket, prefix = _parts(asked.url)
        prefix += "/" if prefix and not prefix.endswith("/") else ""
        root = f"{scheme}://{bucket}/"
        asks = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        asks |= ({} if asked.deep else {"delimiter": "/"}) | ({"continuation-token": asked.page} if asked.page else {})
        query = urlencode(sorted(asks.items()), quote_via=quote)
        of_bucket = asked._replace(url=root)
        page = await self.send("GET", of_bucket, lambda response: whole(of_bucket, response), query)
        try:
            tree = ET.fromstring(page.data)  # noqa: S314  # expat bounds what entities expand to; a host is trusted so far
        except ET.ParseError as error:  # of a body without a length nothing else tells that it was cut
            raise FailureError("a list that was cut") from error
        found = []
        for entry in tree.iterfind(f"{_SPACE}Contents"):
            texts = {child.tag.rpartition("}")[2]: child.text or "" for child in entry}
            found.append(Listed(root + unquote(texts["Key"]), int(texts.get("Size") or 0), texts.get("ETag", "")))
        found = [one for one in found if not one.url.endswith("/")]  # which stands for a folder
        folders = tree.iterfind(f"{_SPACE}CommonPrefixes/{_SPACE}Prefix")
        found += [Listed(root + unquote(folder.text or ""), 0, "") for folder in folders]
        token = tree.findtext(f"{_SPACE}NextContinuationToken")
        return Listing(found, [asked._replace(page=token)] if token else [])

    def prepare(self, method: str, asked: Asked, query: str) -> Prepared:
        self._settings = settings = self._settings or self._found()
        _, bucket, key = _parts(asked.url)
        region = self._regions.get(bucket, settings.region)
        if settings.endpoint:
            root = f"{settings.endpoint.rstrip('/')}/{bucket}"
        elif "." in bucket:  # the certificate is for one label
            root = f"https://s3.{region}.amazonaws.com/{bucket}"
        else:
            root = f"https://{bucket}.s3.{region}.amazonaws.com"
        target = f"{root}/{quote(key, _SAFE)}" + (f"?{query}" if query else "")
        signed = {} if self._options.anonymous else _signed(method, target, region, asked, settings.credentials)
        return Prepared(target, range_headers(asked) | signed, settings)

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
        _, bucket, _ = _parts(asked.url)
        region = headers.get("x-amz-bucket-region")
        if region is not None and region != self._regions.get(bucket, used.settings.region):
            self._regions[bucket] = region
            return True
        return isinstance(error, DeniedError) and not self._options.anonymous and self._renewed(used)

    def _renewed(self, used: Prepared) -> bool:
        """Whether other credentials than those used, which were refused, may be available now."""
        if used.settings is not self._settings:  # they were renewed meanwhile
            return True
        if time.monotonic() - self._renewed_at < _RENEWAL_S:
            return False
        self._renewed_at = time.monotonic()
        self._settings = None  # files, environment and roles are asked anew
        return True


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and key of a url."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return scheme, bucket, key


def _signed(method: str, target: str, region: str, asked: Asked, credentials: Any) -> dict[str, str]:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    if credentials is None:
        raise ValueError(
            "reading s3://: expected credentials in the environment, a profile or a role, got none\n"
            "  Set them as for the AWS tools, or storage_options: {anonymous: true} for a public bucket."
        )
    with nullcontext() if asked.body is None else asked.body.open("rb") as data:
        request = AWSRequest(method, target, data=data)
        S3SigV4Auth(credentials.get_frozen_credentials(), "s3", region).add_auth(request)
    return dict(request.headers.items())
