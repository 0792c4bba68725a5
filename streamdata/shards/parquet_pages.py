"""Headers of parquet's pages, as far as they tell how large a page is.

Format: https://github.com/apache/parquet-format, https://github.com/apache/thrift (compact protocol).
"""

_NEXT_INT32, _GOES_ON = b"\x15", 0x80  # the head of the next field, a 32-bit integer; a bit of its bytes


def unpacked_bytes(header: bytes) -> int:
    """The size of a page when it is decompressed: the second field of its header, in Thrift's compact protocol."""
    after_kind = _varint_end(header, 1)
    end = _varint_end(header, after_kind + 1)
    if header[:1] != _NEXT_INT32 or header[after_kind : after_kind + 1] != _NEXT_INT32 or end > len(header):
        return 0  # no header that anybody reads
    groups = header[after_kind + 1 : end]
    number = sum((group & ~_GOES_ON) << 7 * place for place, group in enumerate(groups))
    return max(0, (number >> 1) ^ -(number & 1))


def _varint_end(data: bytes, at: int) -> int:
    """Where the number ends that begins there: at the first byte without the bit that says that it goes on."""
    while at < len(data) and data[at] & _GOES_ON:
        at += 1
    return at + 1
