"""Formats of files, recognised by their first bytes, for errors about files that are not what their names say."""

import re

from streamdata.errors import ShardError, shown

HEAD_BYTES = 512
"""Bytes that are enough to recognise a format."""
TAR, JSONL = "a tar archive", "JSON Lines"
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_COMPRESSED = {
    ".gz": ("gzip data", GZIP),
    ".zst": ("Zstandard data", ZSTD),
    ".bz2": ("bzip2 data", b"BZh"),
    ".xz": ("xz data", b"\xfd7zXZ\0"),
}
_SKIPPABLE_ZSTD = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)  # RFC 8878, section 3.1.2
_SHOWN_BYTES = 16
_WRITE_ANEW = "Decompress it, or compress it by gzip (.gz) or Zstandard (.zst)."
_PARQUET = "Read it by ParquetDataset, `streamdata prepare` or as prompts."
_SERVER = "A server gave it in place of the file, as an error or to log in: download the file again."
_OTHER = "Write it in the format that its name says, or leave it out."


_SIGNATURES = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), what, remedy)
    for pattern, what, remedy in (
        (rb".{257}ustar(\0|  \0)", TAR, "Read it by MetaDistributedWebDataset, and give it a name that ends in .tar."),
        (rb"\x1f\x8b", "gzip data", "Give it a name that ends in .gz, or decompress it."),
        (rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", "Zstandard data", "Give it a name that ends in .zst."),
        (rb"BZh[1-9]1AY&SY", "bzip2 data", "Give it a name that ends in .bz2, or decompress it."),
        (rb"\xfd7zXZ\0", "xz data", "Give it a name that ends in .xz, or decompress it."),
        (rb"\x04\x22\x4d\x18", "LZ4 data", _WRITE_ANEW),
        (rb"PK(\x03\x04|\x05\x06)", "a zip archive", "Unpack it."),
        (rb"PAR1", "a parquet file", _PARQUET),
        (rb"ARROW1", "an Arrow file", _OTHER),
        (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _OTHER),
        (rb"version https://git-lfs", "a pointer of Git LFS", "Run `git lfs pull` where it came from."),
        (rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml|error)\b", "an HTML or XML page", _SERVER),
        (rb"\xff\xfe|\xfe\xff", "UTF-16 text", "Write it as UTF-8."),
    )
)


def refuse_foreign(url: str, head: bytes, expected: str) -> None:
    """Raise ShardError if a file's first bytes are those of another known format than the expected one."""
    for pattern, what, remedy in _SIGNATURES:
        if pattern.match(head):
            if what == expected:  # and yet damaged
                return
            raise _unfit(url, head, expected, what, remedy)


def check_compressed(url: str, head: bytes, suffix: str) -> None:
    """Raise ShardError if a file is empty, or its first bytes contradict its compression suffix."""
    what, magic = _COMPRESSED[suffix]
    expected = f"{what}, by its name"
    if not head:
        raise ShardError(
            f"shard '{url}': expected {expected}, got a file of 0 bytes\n"
            "  Even without content it would have a header: copy or write it again."
        )
    if magic.startswith(head[: len(magic)]) or (magic == ZSTD and _SKIPPABLE_ZSTD.match(head)):
        return
    refuse_foreign(url, head, expected)
    raise _unfit(url, head, expected, "other data", "Give it a name that fits, or copy or write it again.")


def _unfit(url: str, head: bytes, expected: str, got: str, remedy: str) -> ShardError:
    return ShardError(
        f"shard '{url}': expected {expected}, got {got}, which begins with {shown(head[:_SHOWN_BYTES])}\n  {remedy}"
    )
