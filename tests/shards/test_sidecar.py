import logging
import os
from pathlib import Path

import numpy as np
import pytest

from streamdata.errors import ShardError
from streamdata.shards.sequential import SequentialTar
from streamdata.shards.tar import TarShards
from tests.shards.conftest import read_all, whole

MEMBERS = [("a/0.jpg", b"0"), ("a/1.jpg", b"1"), ("a/2.jpg", b"2"), ("a/2.id", b" id-2\n")]
LINES = [{"key": "id-2", "score": 2}, {"key": "a/2", "score": -1}, {"key": "a/0", "score": 0, "more": [1]}]


def both_ways(url, names):
    """All records by the index, which are also those read from the start."""
    records = read_all(TarShards([url], names))
    assert list(SequentialTar([url], names).stream(0)) == records
    return records


def both_fail(url, names, message):
    """Both ways of reading raise an error that matches `message`."""
    with pytest.raises(ShardError, match=message):
        read_all(TarShards([url], names))
    with pytest.raises(ShardError, match=message):
        list(SequentialTar([url], names).stream(0))


@pytest.mark.parametrize("suffix", [".meta.jsonl", ".jsonl"])
def test_fields_asked_for_join_by_id_or_key(write_tar, write_jsonl, suffix):
    """The `.id` member's text decides where there is one; absent fields, and records without a line, have None."""
    write_jsonl(LINES, f"00000{suffix}")
    records = both_ways(write_tar(MEMBERS), ["score", "more"])
    assert [(record["score"], record["more"]) for record in records] == [(0, [1]), (None, None), (2, None)]


def test_the_meta_sidecar_goes_before_the_other(write_tar, write_jsonl):
    """Where both lie beside a shard, .meta.jsonl counts."""
    write_jsonl([{"key": "a/0", "score": 1}], "00000.jsonl")
    write_jsonl([{"key": "a/0", "score": 2}], "00000.meta.jsonl")
    assert both_ways(write_tar(MEMBERS[:1]), ["score"])[0]["score"] == 2


def test_integer_keys_match_their_digits(write_tar, write_jsonl):
    """A sidecar may write the id of a record as a number, as webdataset's writer does."""
    write_jsonl([b"", {"key": 17, "score": 3}], "00000.meta.jsonl")
    assert both_ways(write_tar([("a.id", b"17")]), ["score"])[0]["score"] == 3


def test_records_without_a_line_are_counted_and_logged(write_tar, write_jsonl, caplog):
    """Once per shard, with the first of them."""
    write_jsonl(LINES, "00000.meta.jsonl")
    url = write_tar(MEMBERS)
    assert TarShards([url], ["score"]).anomalies()["records without a sidecar line"] == 1
    assert "1 records without a line in the sidecar, the first record number 1" in caplog.text
    caplog.clear()
    sequential = SequentialTar([url], ["score"])
    assert len(list(sequential.stream(0))) == 3
    assert sequential.anomalies() == {"records without a sidecar line": 1}
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING]
    assert "a/1" in caplog.text


def test_a_missing_sidecar_is_an_error(write_tar):
    """When fields are asked for, a shard without a sidecar says which files were looked for."""
    with pytest.raises(ShardError, match=r"00000\.meta\.jsonl.*00000\.jsonl.*got none"):
        TarShards([write_tar(MEMBERS)], ["score"])
    assert len(read_all(TarShards([write_tar(MEMBERS)]))) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"key": "a/0"}, {"key": "b"}, b"", {"key": "a/0"}], r"00000\.meta\.jsonl:4:1: .*line 1 again"),
        ([{"key": "a/0"}, {"score": 1}], r"00000\.meta\.jsonl:2:1: expected a 'key'.*None"),
        ([{"key": True}], r"00000\.meta\.jsonl:1:1: expected a 'key'.*True"),
        ([{"key": "a/0"}, b'{"key": '], r"00000\.meta\.jsonl:2:9: "),
        ([{"key": "a/0", "n": 2**64}], r"00000\.meta\.jsonl:1:21: expected an integer"),
        ([b'["key"]'], r"00000\.meta\.jsonl:1:1: expected a JSON object, got list"),
    ],
)
def test_broken_sidecars_are_errors_with_their_place(write_tar, write_jsonl, lines, message):
    """A key twice, no key, or a broken line: file, line and column."""
    write_jsonl(lines, "00000.meta.jsonl")
    both_fail(write_tar(MEMBERS), ["score"], message)


def test_a_field_that_is_in_the_archive_too_is_an_error(write_tar, write_jsonl):
    """Neither of two values for one field is chosen silently."""
    write_jsonl([{"key": "a/0", "jpg": 1}], "00000.meta.jsonl")
    both_fail(write_tar(MEMBERS), ["jpg"], "record 'a/0': expected no field 'jpg'")


@pytest.mark.parametrize("names", ["score", ["score", "score"], ["__key__"], [3]])
def test_names_that_cannot_be_fields_are_refused(write_tar, write_jsonl, names):
    """A text in place of a list, a name twice, a reserved name."""
    write_jsonl(LINES, "00000.meta.jsonl")
    with pytest.raises(ValueError, match="meta_names"):
        TarShards([write_tar(MEMBERS)], names)


def test_a_sidecar_that_changes_is_indexed_again_or_an_error(write_tar, write_jsonl):
    """A new reader sees the new sidecar; one that began with the old one raises."""
    url, sidecar = write_tar(MEMBERS), Path(write_jsonl(LINES, "00000.meta.jsonl"))
    shards = TarShards([url], ["score"])
    assert read_all(shards)[0]["score"] == 0
    sidecar.write_bytes(sidecar.read_bytes().replace(b'"score": 0', b'"score": 7'))
    os.utime(sidecar, ns=(1, 1))
    with pytest.raises(ShardError, match=r"00000\.meta\.jsonl.*replaced or modified"):
        read_all(shards)
    assert both_ways(url, ["score"])[0]["score"] == 7


def test_a_sidecar_that_another_is_renamed_over_is_read_by_the_next_reader(write_tar, write_jsonl):
    """What an earlier reader of this process left open is not it any more."""
    url, sidecar = write_tar(MEMBERS), Path(write_jsonl(LINES, "00000.meta.jsonl"))
    for score in range(4):
        other = sidecar.with_name("other")
        other.write_bytes(sidecar.read_bytes().replace(b'"score": %d' % max(0, score - 1), b'"score": %d' % score))
        other.rename(sidecar)
        assert both_ways(url, ["score"])[0]["score"] == score


def test_lines_are_found_in_any_order(write_tar, write_jsonl):
    """Sidecars need not have the order of the archive."""
    keys = [f"k{number}" for number in range(50)]
    write_jsonl([{"key": key, "n": key} for key in sorted(keys, reverse=True)], "00000.jsonl")
    window = whole(TarShards([write_tar([(f"{key}.x", b"") for key in keys])], ["n"]))
    order = np.random.default_rng(0).permutation(50)
    assert [record["n"] for record in window.take(order)] == [keys[place] for place in order]
