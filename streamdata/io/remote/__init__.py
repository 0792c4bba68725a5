"""Objects in stores elsewhere, read by ranges.

1. `url, storage_options` → `stores` → how its store is spoken to
2. `url, range, version` → `Network.submit` → `Future[Answer]`: one pool of connections per process, with retries
3. `url` → `fetch_once`, `stat_once`, `list_once` → the same without threads and event loop: what is read before a fork;
   `url, file` → `put_once` → an object
4. `url, version, range` → `PageCache.read` → from pages on the disk of the node, else by a request, once on the node
"""

from streamdata.io.remote.addresses import (
    NO_OPTIONS,
    Address,
    StorageOptions,
    bare_url,
    beside,
    checked_options,
    options_of,
    options_of_source,
)
from streamdata.io.remote.hosts import canonical_url, kind_of
from streamdata.io.remote.network import Network, network
from streamdata.io.remote.once import check_can_put, fetch_once, list_once, put_once, stat_once
from streamdata.io.remote.requests import (
    Answer,
    DeadStoreError,
    DeniedError,
    GoneError,
    Listed,
    RangeClient,
    RangesIgnoredError,
    ReplacedError,
    Stat,
)

__all__ = [
    "NO_OPTIONS",
    "Address",
    "Answer",
    "DeadStoreError",
    "DeniedError",
    "GoneError",
    "Listed",
    "Network",
    "RangeClient",
    "RangesIgnoredError",
    "ReplacedError",
    "Stat",
    "StorageOptions",
    "bare_url",
    "beside",
    "canonical_url",
    "check_can_put",
    "checked_options",
    "fetch_once",
    "kind_of",
    "list_once",
    "network",
    "options_of",
    "options_of_source",
    "put_once",
    "stat_once",
]
