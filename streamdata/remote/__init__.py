"""Objects in stores elsewhere, read by ranges.

1. `url, storage_options` → `stores` → how its store is spoken to
2. `url, range, version` → `Network.submit` → `Future[Answer]`: one pool of connections per process, with retries
3. `url` → `fetch_once`, `stat_once`, `list_once` → the same without threads and event loop: what is read before a fork
"""

from streamdata.remote.answers import (
    Answer,
    DeadStoreError,
    DeniedError,
    GoneError,
    Listed,
    RangeClient,
    RangesIgnoredError,
    ReplacedError,
    Stat,
    bare_url,
)
from streamdata.remote.network import Network, network
from streamdata.remote.options import NO_OPTIONS, StorageOptions, checked_options

__all__ = [
    "NO_OPTIONS",
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
    "checked_options",
    "network",
]
