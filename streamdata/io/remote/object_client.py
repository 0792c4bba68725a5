"""Ranges of Google Cloud Storage and Azure, through obstore: its `get` with options, so that each has its precondition.

Its threads do not survive a fork, and a child that uses it then hangs: there it is an error.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from streamdata.errors import ShardError, needs
from streamdata.io.remote.addresses import StorageOptions, bare_url
from streamdata.io.remote.requests import DEADLINE_S, STALL_S, Answer, Asked, FailureError, Listed, Listing

with needs("obstore", "azure,gcs", "reading gs:// and az://"):
    import obstore
    import obstore.exceptions
    import obstore.store


_IGNORED = "non-partial response"
_STATUS = re.compile(r"status code: (\d{3})")


class ObjectClient:
    """A Client over obstore.

    Args:
        options: Of the hosts.
    """

    used_by: ClassVar[int | None] = None
    """The process in which obstore has started its threads."""

    def __init__(self, options: StorageOptions) -> None:
        if self.used_by not in (None, os.getpid()):
            raise RuntimeError(
                "reading gs:// and az://: this process was forked from one that read there, and obstore would hang\n"
                "  Start workers by multiprocessing_context='forkserver' or 'spawn', or read in workers alone."
            )
        type(self).used_by = os.getpid()
        self._options = options
        self._stores: dict[str, Any] = {}

    async def fetch(self, asked: Asked) -> Answer:
        store, path = self._store(asked)
        options: Any = {"range": (asked.begin, asked.end)} | ({"if_match": asked.version} if asked.version else {})
        with _its_errors(asked):
            found = await obstore.get_async(store, path, options=options)
            data = bytes(await found.bytes_async())
        got = _stat(found.meta)
        asked.check_version(got.version)
        return asked.completed(got, data)

    async def stat(self, asked: Asked) -> Answer:
        store, path = self._store(asked)
        with _its_errors(asked):
            return _stat(await obstore.head_async(store, path))

    async def put(self, asked: Asked) -> None:
        """Write an object; a large one is sent in parts, and appears with the last part."""
        assert asked.body is not None, "nothing is to be written"
        store, path = self._store(asked)
        with _its_errors(asked):
            await obstore.put_async(store, path, asked.body)

    async def list(self, asked: Asked) -> Listing:
        store, path = self._store(asked)
        root = asked.url.removesuffix(path)
        with _its_errors(asked):
            if asked.deep:
                objects, folders = await obstore.list(store, path).collect_async(), []
            else:
                found = await obstore.list_with_delimiter_async(store, path)
                objects, folders = list(found["objects"]), list(found["common_prefixes"])
        files = [(f"{root}{meta['path']}", _stat(meta)) for meta in objects]
        listed = [Listed(name, found.size, found.version) for name, found in files]
        return Listing([*listed, *(Listed(f"{root}{folder.rstrip('/')}/", 0, "") for folder in folders)], [])

    def _store(self, asked: Asked) -> tuple[Any, str]:
        """The bucket of a request, as obstore has it, and the path in it."""
        parts = urlsplit(bare_url(asked.url))  # its errors quote what it is given, and it takes no password
        root = f"{parts.scheme}://{parts.netloc}"
        if root not in self._stores:
            is_google, options = parts.scheme in ("gs", "gcs"), self._options
            config: Any = {"skip_signature": True} if options.anonymous else {}
            if options.endpoint:
                config["base_url" if is_google else "endpoint"] = options.endpoint
            stall = f"{STALL_S * 1000:.0f}ms"
            # `timeout` is of all of a request, which may be large; `read_timeout` begins anew with each byte.
            client: Any = {"timeout": f"{DEADLINE_S:.0f}s", "read_timeout": stall, "connect_timeout": stall}
            client["allow_http"] = True
            retries: Any = {"max_retries": 0}
            try:
                self._stores[root] = obstore.store.from_url(
                    root.replace("gcs://", "gs://", 1), config=config, client_options=client, retry_config=retries
                )
            except obstore.exceptions.BaseError as error:  # of settings alone: nothing was asked yet
                said = str(error).partition("\n")[0]  # without its fields, of which some are secret
                remedy = "Set what it lacks in the environment, such as AZURE_STORAGE_ACCOUNT_NAME."
                raise ShardError(f"store '{root}': expected settings to reach it, got: {said}\n  {remedy}") from None
        return self._stores[root], asked.url.partition("://")[2].partition("/")[2]

    async def close(self) -> None:
        self._stores = {}


def _stat(meta: Any) -> Answer:
    return Answer(b"", meta["e_tag"] or str(meta["last_modified"] or ""), int(meta["size"]))


@contextmanager
def _its_errors(asked: Asked) -> Iterator[None]:
    """Raise ours for obstore's errors, whose words may have the address, with its signature."""
    kinds = obstore.exceptions
    try:
        yield
    except (FileNotFoundError, kinds.NotFoundError):
        raise asked.refusal(404) from None
    except kinds.PreconditionError:
        raise asked.refusal(412) from None
    except kinds.UnauthenticatedError:
        raise asked.refusal(401) from None
    except kinds.PermissionDeniedError:
        raise asked.refusal(403) from None
    except (kinds.GenericError, OSError) as error:
        if _IGNORED in str(error):
            raise asked.ranges_ignored("expected these bytes, got all of it: its server ignores ranges") from None
        # Errors of lists are all of this kind, also those that will not pass.
        if found := _STATUS.search(str(error)):
            raise asked.refusal(int(found[1])) from None
        raise FailureError("a connection that failed, or a body that was cut") from None
