"""How many records a shard has that is read from its start: all of it is read, once on a node.

The count is kept in the cache, by the url and version of the shard.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from streamdata.errors import one_line, shown
from streamdata.shards.held import ANY_VERSION
from streamdata.shards.publish import cache_directory, locked, publish_beside_or_cached
from streamdata.shards.storage import FileStamp, is_pipe, is_remote, local_path

logger = logging.getLogger(__name__)


def kept_count(kind: str, url: str, stamp: FileStamp, count: Callable[[], int]) -> int:
    """The count that the cache has of a shard, or else that of `count`, which it then keeps.

    Raises:
        ValueError: The shard is a pipe, which may give others each time.
        ShardError: The cache cannot be written.
    """
    if is_pipe(url):
        raise ValueError(
            f"num_records: expected files, whose records are counted once, got {shown(url)}\n"
            "  Write what the command gives to files; for check_length, set the source's `length`."
        )
    if stamp.version == ANY_VERSION:  # which it has is not known before it is read, and may differ next time
        return count()
    place = url if is_remote(url) else os.path.abspath(local_path(url))
    name = hashlib.blake2b(os.fsencode(f"{kind} {place} {tuple(stamp)}"), digest_size=16).hexdigest()
    kept = Path(cache_directory(), "counts", name[:2], name)
    with locked(str(kept)):
        try:
            return int(kept.read_text("ascii"))
        except (FileNotFoundError, ValueError):  # none yet, or a damaged one
            pass
        except OSError as error:
            logger.warning("shard '%s': its count cannot be read: %s; it is made again", one_line(url), one_line(error))
        found = count()
        publish_beside_or_cached(None, kept, [str(found).encode()])
    return found
