"""Sound files of each format, and ways to damage them: `bytes → bytes`."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[bytes], bytes]
NUM_SHARDS, NUM_RECORDS = 3, 6
RECORD = 2560  # bytes of a record in a tar: a header and a block, a header and two blocks
END = NUM_RECORDS * RECORD
AT = 2 * RECORD  # where the third record begins


def write_shards(folder: Path, suffix: str) -> Path:
    """Shards of a format; every record tells its shard and its number there."""
    folder.mkdir()
    for shard in range(NUM_SHARDS):
        path, places = folder / f"{shard:05}{suffix}", [f"{shard}/{number}" for number in range(NUM_RECORDS)]
        if suffix.startswith(".tar"):
            content = _tar(places)
            lines = [json.dumps({"key": place, "score": place}) for place in places]
            path.with_name(f"{shard:05}.meta.jsonl").write_text("\n".join(lines) + "\n")
        else:
            lines = [json.dumps({"at": place, "pad": "x" * 7 * len(place)}) for place in places]
            content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    return folder


def _tar(places: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for place in places:
            for field, data in (("txt", place.encode()), ("bin", place.encode() * 200)):
                info = tarfile.TarInfo(f"{place}.{field}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def cut(end: int) -> Damage:
    """What a copy leaves that was interrupted."""
    return lambda data: data[:end]


def flip(at: int) -> Damage:
    """A bit is another one."""
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def hole(begin: int, end: int) -> Damage:
    """Blocks that never reached the disk."""
    return lambda data: data[:begin] + bytes(min(end, len(data)) - begin) + data[end:]


def moved(begin: int, end: int, to: int) -> Damage:
    """Bytes come later, behind others."""
    return lambda data: data[:begin] + data[end:to] + data[begin:end] + data[to:]


def repeated(begin: int, end: int, at: int) -> Damage:
    """Bytes come again."""
    return lambda data: data[:at] + data[begin:end] + data[at:]


def changed(old: bytes, new: bytes) -> Damage:
    """Bytes are others, wherever they stand."""
    return lambda data: data.replace(old, new)


def header(at: int, begin: int, value: bytes) -> Damage:
    """Another field in a header of a tar, whose sum is right."""

    def damage(data: bytes) -> bytes:
        block = bytearray(data[at : at + 512])
        block[begin : begin + len(value)] = value
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + 256 + sum(block[156:]))
        return data[:at] + block + data[at + 512 :]

    return damage


def with_pax(**records: str) -> Damage:
    """A pax header before the third record."""
    info = tarfile.TarInfo("1/2.bin")
    info.pax_headers = records
    extended = info.tobuf(format=tarfile.PAX_FORMAT)[:-512]
    return lambda data: data[:AT] + extended + data[AT:]


def line(number: int, content: bytes) -> Damage:
    """Another line in place of the one of this number, from 1."""

    def damage(data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines[number - 1] = content
        return b"\n".join(lines)

    return damage


def unpacked(damage: Damage) -> Damage:
    """The same damage to what a gzip file holds."""
    return lambda data: gzip.compress(damage(gzip.decompress(data)))
