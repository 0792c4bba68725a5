"""Shards are damaged, one after another: no sample is lost, altered or moved without a word.

The name of each fault begins with its number in the table of `tests/README.md`.
"""

import gzip
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, ShardError, to_state
from tests.cpu import cpu_within
from tests.faults.damaged_files import (
    AT,
    END,
    RECORD,
    Damage,
    changed,
    cut,
    flip,
    header,
    hole,
    line,
    moved,
    repeated,
    unpacked,
    with_pax,
    write_shards,
)
from tests.faults.outcomes import Outcome, after_damage
from tests.streams import plain

TAR = {
    "1 cut between members": (cut(AT + 1024), "offset 6144: expected a header or an end-of-archive marker .*got 0 byt"),
    "1 cut between records": (cut(AT), "offset 5120: expected a header or an end-of-archive marker .*, got 0 bytes"),
    "2 cut in a header": (cut(AT + 100), "offset 5120: expected a header or an end-of-archive marker .*, got 100 byt"),
    "3 cut in a member": (cut(AT + 1836), "offset 6656, member '1/2.bin': expected 600 bytes of the .*, got 300, whe"),
    "4 flip in a name": (flip(AT), "offset 5120, member '0/2.txt': expected a header whose checksum .*, got the sum"),
    "4 flip in a size": (flip(AT + 130), "offset 5120, member '1/2.txt': expected a header whose checksum .*, got the"),
    "6 hole in a header": (hole(AT, AT + 512), "offset 5632: expected the second block of zeros .*, got other data"),
    "6 hole over a member": (hole(AT, AT + 1024), "offset 6144: expected nothing but zeros after .*, got other data"),
    "6 hole over a record": (hole(AT, AT + RECORD), "offset 7680: expected nothing but zeros after .*, got other dat"),
    "6 no end": (cut(END), "offset 15360: expected a header or an end-of-archive marker .*, got 0 bytes"),
    "6 half an end": (cut(END + 512), "offset 15872: expected the second block of zeros .*, got 0 bytes, where the f"),
    "7 two archives": (repeated(0, 10240, 20480), "offset 20480: expected nothing but zeros .*, got other.*\n.*split"),
    "8 keys apart": (
        moved(AT - 1536, AT, AT + RECORD),
        "offset 6144: expected the members of record '1/1', which began at offset 2560, side by side, got them apart",
    ),
    "8 a key twice": (
        repeated(0, RECORD, AT),
        "offset 5120: expected the members of record '1/0', which began at offset 0, side by side, got them apart",
    ),
    "8 a member twice": (repeated(0, 1024, 1024), "offset 1024, member '1/0.txt': expected each field .*, got 'txt' t"),
    "9 symbolic link": (header(AT, 156, b"2"), "offset 5120, member '1/2.txt': expected a regular .*, got symbolic li"),
    "9 hard link": (header(AT, 156, b"1"), "offset 5120, member '1/2.txt': expected a regular file .*, got hard link"),
    "9 sparse": (header(AT, 156, b"S"), "offset 5120, member '1/2.txt': expected a regular file .*, got sparse file"),
    "9 sparse by pax": (
        with_pax(**{"GNU.sparse.major": "1"}),
        "offset 5120, member .*: expected a regular .*, got sparse file",
    ),
    "9 negative": (header(AT, 124, b"\xff" * 12), "offset 5120, member '1/2.txt': expected a size from 0 on, got -1"),
    "9 minus sign": (
        header(AT, 124, b"-0000000001\0"),
        "offset 5120, member '1/2.txt': expected a size from 0 on, got -1",
    ),
    "9 pax of minus one": (with_pax(size="-1"), "offset 5120, member '1/2.txt': expected a size from 0 on, got -1"),
    "9 8 GiB": (header(AT, 124, b"\x80" + (8 << 30).to_bytes(11, "big")), "member '1/2.txt': expected .* 8589934592"),
    "9 8 GiB by pax": (with_pax(size=str(8 << 30)), "member '1/2.txt': expected .*8589934592"),
}
JSONL = {
    "12 broken": (line(3, b'{"at": x'), ":3:8: expected a JSON object on one line, got unexpected character"),
    "12 no text": (line(3, b'{"at": "\xff"}'), r":3:9: expected UTF-8, got invalid start byte b'\\xff'"),
    "12 hole": (line(3, bytes(40)), ":3:1: expected a JSON object on one line, got unexpected character"),
    "13 torn": (lambda data: data[:-9], ":6:.*: expected a JSON object on one line, got unexpected end of data"),
    "14 NaN": (line(3, b'{"at": NaN}'), ":3:8: expected a JSON object on one line, got unexpected character"),
    # The column and the words are orjson's, and not the same in all of its versions.
    "14 half a surrogate": (line(3, rb'{"at": "\ud800"}'), ":3:.*: expected a JSON .*, got no low surrogate in string"),
    "14 surrogate as bytes": (line(3, b'{"at": "\xed\xa0\x80"}'), ":3:9: expected UTF-8, got invalid continuation by"),
    "14 depth": (line(3, b"[" * 100_000 + b"]" * 100_000), ":3:.*: expected a JSON .*, got .*depth .*exceeded"),
    "14 open depth": (line(3, b'{"at":' * 100_000), ":3:.*: expected a JSON .*, got .*depth .*exceeded"),
    "14 5000 digits": (line(3, b'{"at": ' + b"9" * 5000 + b"}"), ":3:8: expected a JSON .*, got number is infinity"),
    "14 300 digits": (line(3, b'{"at": ' + b"9" * 300 + b"}"), ":3:8: expected an integer from .*, got 9{40}…"),
}
GZIP = {
    "10 cut": (
        lambda data: data[: len(data) // 2],
        "of the uncompressed .*, got the end of the file within",
    ),
    "10 cut in the sum": (
        lambda data: data[:-4],
        "of the uncompressed .*, got the end of the file within",
    ),
    "10 wrong sum": (lambda data: flip(len(data) - 8)(data), "of the uncompressed .* got .*incorrect data check"),
    "10 wrong size": (lambda data: flip(len(data) - 4)(data), "of the uncompressed .* got .*incorrect length check"),
    "10 other data": (lambda data: data + b"other", "of the uncompressed data: .* got .*incorrect header check"),
}
SIDECAR = {
    "11 torn": (lambda data: data[:-5], ":6:.*: expected a JSON object on one line, got unexpected end of data"),
    "11 no key": (line(3, b'{"score": 1}'), ":3:1: expected a 'key' that is a text or an integer, got None"),
    "11 a key twice": (
        line(3, b'{"key": "1/1", "score": 99}'),
        ":3:1: expected each key once, got that of line 2 again",
    ),
    "11 of another shard": (
        changed(b'"1/', b'"2/'),
        r"expected lines for the records of '.*00001\.tar' \(the first is record '1/0'\), got none .* for '2/0'",
    ),
}


@pytest.fixture
def stream(tmp_path: Path) -> Callable[..., Callable[[], MergedDataset]]:
    """What makes a finite stream of shards of a format, which are written once."""

    def make(suffix: str, max_bad: int = 9, **options: object) -> Callable[[], MergedDataset]:
        folder = str(write_shards(tmp_path / "s", suffix))
        options = {"shuffle_buffer": 4, "block_size": 2, **options}
        if suffix.startswith(".tar"):
            kind, options = MetaDistributedWebDataset, options | {"meta_names": ["score"]}
        else:
            kind = JsonlIterableDataset

        def make_stream() -> MergedDataset:
            dataset = kind(folder, **options)
            dataset.name, dataset.percent, dataset.max_bad = "s", 1, max_bad
            return MergedDataset([dataset], cyclic=False)

        return make_stream

    return make


def rewrite(path: Path, damage: Damage, *, unseen: bool = False) -> None:
    """Damage a file in place; `unseen`, and its modification time stays."""
    before, data = path.stat(), damage(path.read_bytes())
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    if unseen:
        assert len(data) == before.st_size
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cases(faults: dict[str, tuple[Damage, str]]) -> pytest.MarkDecorator:
    """A test for each of them."""
    return pytest.mark.parametrize(("damage", "message"), faults.values(), ids=faults)


def assert_one_error(outcome: Outcome, path: Path, message: str) -> None:
    """It names the file, then says the rest."""
    assert isinstance(outcome.error, ShardError)
    assert re.search(f"{re.escape(str(path))}.*{message}", outcome.said, re.DOTALL), outcome.said


@cases(TAR)
def test_a_damaged_tar_is_one_error(stream, tmp_path, caplog, damage, message) -> None:
    """Before anything of its source is delivered: its index is made first."""
    path = tmp_path / "s" / "00001.tar"
    outcome = after_damage(stream(".tar"), lambda: rewrite(path, damage), caplog)
    assert outcome.delivered == []
    assert_one_error(outcome, path, message)


@cases(TAR)
def test_a_damaged_tar_in_gzip_is_one_error(stream, tmp_path, caplog, damage, message) -> None:
    """What came before it is delivered."""
    path = tmp_path / "s" / "00001.tar.gz"
    outcome = after_damage(stream(".tar.gz"), lambda: rewrite(path, unpacked(damage)), caplog)
    assert len(outcome.delivered) >= 6
    assert_one_error(outcome, path, message)


IN_PLACE = {name: fault for name, fault in TAR.items() if name[:2] in ("4 ", "6 ") and "end" not in name}


@pytest.mark.parametrize("after", [None, 3])
@cases(IN_PLACE)
def test_a_tar_damaged_behind_its_index_is_one_error(stream, tmp_path, caplog, damage, message, after) -> None:
    """Between two runs or within one, though size and modification time stay: headers are compared as they are read."""
    path = tmp_path / "s" / "00001.tar"
    outcome = after_damage(stream(".tar"), lambda: rewrite(path, damage, unseen=True), caplog, after=after)
    assert_one_error(outcome, path, f"{message}|offset 5120: expected a record whose headers have CRC32 .*, got none")


@cases(JSONL)
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_damaged_line_is_one_error(stream, tmp_path, caplog, suffix, damage, message) -> None:
    """With file, line and column; what came before it is delivered."""
    path = tmp_path / "s" / f"00001{suffix}"
    damage = unpacked(damage) if suffix == ".jsonl.gz" else damage
    outcome = after_damage(stream(suffix, max_bad=0), lambda: rewrite(path, damage), caplog)
    assert outcome.delivered
    assert_one_error(outcome, path, message)


@cases(JSONL)
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_damaged_line_is_skipped_and_recorded(stream, tmp_path, caplog, suffix, damage, message) -> None:
    """Under `max_bad`, in the state and in the log, with file, line and column; all others are delivered."""
    path = tmp_path / "s" / f"00001{suffix}"
    damage = unpacked(damage) if suffix == ".jsonl.gz" else damage
    outcome = after_damage(stream(suffix), lambda: rewrite(path, damage), caplog)
    assert (outcome.error, outcome.skipped) == (None, [f"{path}, key '{int(message.split(':')[1]) - 1}'"])
    assert re.search(f"{re.escape(str(path))}{message}", caplog.text)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_of_a_key_given_twice_the_last_counts(stream, tmp_path, suffix) -> None:
    """14: as Python's json has it; a check of the data names such lines."""
    make, damage = stream(suffix), line(3, b'{"at": "first", "pad": "x", "at": "last"}')
    sound = [plain(sample) for sample in make()]
    rewrite(tmp_path / "s" / f"00001{suffix}", unpacked(damage) if suffix == ".jsonl.gz" else damage)
    want = [sample | ({"at": "last", "pad": "x"} if sample["at"] == "1/2" else {}) for sample in sound]
    assert [plain(sample) for sample in make()] == want


@cases(GZIP)
@pytest.mark.parametrize("suffix", [".jsonl.gz", ".tar.gz"])
def test_damaged_gzip_is_one_error(stream, tmp_path, caplog, suffix, damage, message) -> None:
    """With the offset of what it holds."""
    path = tmp_path / "s" / f"00001{suffix}"
    outcome = after_damage(stream(suffix), lambda: rewrite(path, damage), caplog)
    assert_one_error(outcome, path, rf"offset \d+ {message}")


@cases(SIDECAR)
def test_a_damaged_sidecar_is_one_error(stream, tmp_path, caplog, damage, message) -> None:
    """With its line, where it is one."""
    path = tmp_path / "s" / "00001.meta.jsonl"
    make = stream(".tar", max_bad=0)
    assert_one_error(after_damage(make, lambda: rewrite(path, damage), caplog), path, message)


@cases({name: fault for name, fault in SIDECAR.items() if name in ("11 torn", "11 no key")})
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_a_record_whose_sidecar_line_is_damaged_is_skipped_and_recorded(
    stream, tmp_path, caplog, suffix, damage, message
) -> None:
    """Under `max_bad`: the record that no other line is for, with the line's place."""
    path = tmp_path / "s" / "00001.meta.jsonl"
    outcome = after_damage(stream(suffix), lambda: rewrite(path, damage), caplog)
    number = int(message.split(":")[1]) - 1
    assert (outcome.error, outcome.skipped) == (None, [f"{path.with_name('00001' + suffix)}, key '1/{number}'"])
    assert re.search(f"{re.escape(str(path))}{message}", caplog.text)
    shutil.rmtree(path.parent)
    outcome = after_damage(stream(suffix, max_bad=0), lambda: rewrite(path, damage), caplog)
    assert_one_error(outcome, path, message)


def test_of_a_short_sidecar_with_a_damaged_line_no_record_is_delivered_without_fields(stream, tmp_path, caplog) -> None:
    """The line may be that of any record that has none: all of them are counted."""
    path = tmp_path / "s" / "00001.meta.jsonl"
    outcome = after_damage(stream(".tar"), lambda: rewrite(path, lambda data: cut(62)(data) + b"{"), caplog)
    assert (outcome.error, len(outcome.skipped)) == (None, 4)


BEHIND = {
    "11 another key": (changed(b'"1/2"', b'"1/9"'), "expected the line of key '1/2', got that of '1/9'"),
    "11 no key": (changed(b'"key": "1/2"', b'"kex": "1/2"'), ":3:1: expected a 'key'"),
    "11 hole": (hole(64, 74), ":3:3: expected a JSON object on one line, got "),
}


@cases(BEHIND)
def test_a_sidecar_damaged_behind_its_index_is_one_error(stream, tmp_path, caplog, damage, message) -> None:
    """Never another record's fields."""
    path = tmp_path / "s" / "00001.meta.jsonl"
    outcome = after_damage(stream(".tar", max_bad=0), lambda: rewrite(path, damage, unseen=True), caplog, after=3)
    assert_one_error(outcome, path, message)


@pytest.mark.parametrize(
    ("suffix", "said"),
    [
        (".tar", "4 records without a line in the sidecar, the first record number 2"),
        (".tar.gz", "records without a sidecar line, the first record '1/2'"),
    ],
)
def test_records_without_a_line_are_delivered_and_said(stream, tmp_path, caplog, suffix, said) -> None:
    """11: a sidecar that is short by whole lines may be one that has none for these records."""
    make, path = stream(suffix), tmp_path / "s" / "00001.meta.jsonl"
    sound = [plain(sample) for sample in make()]
    rewrite(path, cut(62))
    delivered = list(make())
    lost = {f"1/{number}": {"score": None} for number in range(2, 6)}
    assert [plain(sample) for sample in delivered] == [sample | lost.get(sample["__key__"], {}) for sample in sound]
    assert f"00001{suffix}': {said}" in caplog.text
    if suffix == ".tar":  # which is known before it is read
        assert to_state(delivered)["generation/0"]["anomalies"] == {"s": {"records without a sidecar line": 4}}


@pytest.mark.parametrize(("suffix", "old", "new"), [(".tar", b"1/21/21/2", b"1/21!21/2"), (".jsonl", b"1/2", b"1!2")])
def test_a_payload_flip_that_nothing_tells_moves_nothing(stream, tmp_path, suffix, old, new) -> None:
    """5: these formats have no sums of their payload; the README says so."""
    make, path = stream(suffix), tmp_path / "s" / f"00001{suffix}"
    sound = [plain(sample) for sample in make()]
    rewrite(path, changed(old, new), unseen=True)
    delivered = [plain(sample) for sample in make()]
    ((before, after),) = [both for both in zip(sound, delivered, strict=True) if both[0] != both[1]]
    assert {name for name in before if before[name] != after[name]} == {"bin" if suffix == ".tar" else "at"}


@contextmanager
def bounded(num_bytes: int) -> Iterator[None]:
    """What happens takes at most so much memory and a second."""
    with cpu_within(1):
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < num_bytes
        finally:
            tracemalloc.stop()


def test_a_member_of_8_gib_takes_neither_time_nor_memory(stream, tmp_path) -> None:
    """9: also where the file is as long, with a hole in it."""
    make, path = stream(".tar"), tmp_path / "s" / "00001.tar"
    rewrite(path, with_pax(size=str(8 << 30)))
    os.truncate(path, 9 << 30)
    message = "member '1/2.txt': expected a member of at most 1073741824 bytes, got 8589934592"
    with bounded(50 << 20), pytest.raises(ShardError, match=message):
        make()


def test_a_line_of_a_gigabyte_in_a_megabyte_of_gzip_is_one_error(stream, tmp_path) -> None:
    """10: after as much of it as a line may have."""
    make, path = stream(".jsonl.gz"), tmp_path / "s" / "00001.jsonl.gz"
    rewrite(path, lambda data: data + gzip.compress(bytes(1 << 20), 1) * 1000)
    with (
        bounded(200 << 20),
        pytest.raises(ShardError, match=r"00001\.jsonl\.gz:7: expected a line of at most 67108864 b"),
    ):
        list(make())
