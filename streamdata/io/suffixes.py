"""How the names of shards end, and what that says of them."""

from streamdata.io.remote import beside
from streamdata.io.storage import is_pipe
from streamdata.recipe.limits import PIPE

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
COMPRESSIONS = ("", ".gz", ".zst", ".zstd", ".bz2", ".xz")
JSONL_SUFFIXES = tuple(end + compressed for end in (".jsonl", ".ndjson") for compressed in COMPRESSIONS)
JSON_SUFFIXES = tuple(f".json{compressed}" for compressed in COMPRESSIONS)
"""What may be JSON Lines, or anything else: in a folder it is no shard, only where a glob ends so or a name is spelt
out."""
SIDECAR_SUFFIXES = (".meta.jsonl", ".jsonl")
META_SUFFIX = SIDECAR_SUFFIXES[0]
_COMPRESSED = (".gz", ".tgz", ".zst", ".zstd", ".bz2", ".xz")


def is_sequential(url: str) -> bool:
    """Whether the shard can only be read from its start: it is compressed or piped."""
    return url.endswith(_COMPRESSED) or url.startswith(PIPE)  # no call for it: there may be 100,000


def sidecars_of(url: str) -> list[str]:
    """What the sidecar of a tar shard may be called, the first first; a pipe has none."""
    stem = next((url.removesuffix(end) for end in TAR_SUFFIXES if url.endswith(end)), url)
    return [] if is_pipe(url) else [beside(url, stem + suffix) for suffix in SIDECAR_SUFFIXES]
