import logging
import os
from pathlib import Path

import numpy as np
import pytest

from streamdata import MetaDistributedWebDataset
from streamdata.errors import ShardError
from streamdata.shards.jsonl import rows as json_rows
from streamdata.shards.sequential import SequentialTar
from streamdata.shards.tar.shards import TarShards
from tests.shards.conftest import read_all, read_from_start, whole

MEMBERS = [("a/0.jpg", b"0"), ("a/1.jpg", b"1"), ("a/2.jpg", b"2"), ("a/2.id", b" id-2\n")]
LINES = [{"key": "id-2", "score": 2}, {"key": "a/9", "score": -1}, {"key": "a/0", "score": 0, "more": [1]}]
WITH_IDS = [member for n in range(3) for member in ((f"{n}.jpg", b"%d" % n), (f"{n}.id", b"id-%d" % n))]


def both_ways(url, names, sidecar_key=None):
    """All records by the index, which are also those read from the start."""
    records = read_all(TarShards([url], names, sidecar_key))
    assert list(SequentialTar([url], names, sidecar_key).stream(0)) == records
    return records


def both_fail(url, names, message, sidecar_key=None):
    """Both ways of reading raise an error that matches `message`."""
    with pytest.raises(ShardError, match=message):
        read_all(TarShards([url], names, sidecar_key))
    with pytest.raises(ShardError, match=message):
        read_from_start(SequentialTar([url], names, sidecar_key))


def scores_of(keys):
    """Lines for these keys, each of which scores its number."""
    return [{"key": key, "score": number} for number, key in enumerate(keys)]


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


def test_what_does_not_join_is_counted_and_logged(write_tar, write_jsonl, caplog):
    """Records, with the first of them, and lines; once per shard each."""
    write_jsonl(LINES, "00000.meta.jsonl")
    url = write_tar(MEMBERS)
    counts = {"records without a sidecar line": 1, "sidecar lines without a record": 1}
    assert TarShards([url], ["score"]).anomalies() == {"members without key and field": 0, **counts}
    assert "1 records without a line in the sidecar, the first record number 1" in caplog.text
    assert "1 lines of the sidecar that are of no record" in caplog.text
    caplog.clear()
    sequential = SequentialTar([url], ["score"])
    assert len(list(sequential.stream(0))) == 3
    assert sequential.anomalies() == counts
    assert [entry.levelno for entry in caplog.records] == [logging.WARNING] * 2
    assert "a/1" in caplog.text


def test_keys_may_be_the_records_own_though_they_have_ids(write_tar, write_jsonl):
    """Where no line joins by an id; every field was None then."""
    write_jsonl(scores_of("012"), "00000.meta.jsonl")
    assert [record["score"] for record in both_ways(write_tar(WITH_IDS), ["score"])] == [0, 1, 2]


def test_each_shard_tells_for_itself(write_tar, write_jsonl):
    """Ids in one, keys in the other."""
    write_jsonl(scores_of("012"), "a.meta.jsonl")
    write_jsonl(scores_of(["id-0", "id-1", "id-2"]), "b.meta.jsonl")
    urls = [write_tar(WITH_IDS, name) for name in ("a.tar", "b.tar")]
    assert [record["score"] for record in read_all(TarShards(urls, ["score"]))] == [0, 1, 2] * 2


@pytest.mark.parametrize(
    ("keys", "by_id", "by_key"),
    [
        (["id-0", "0", "id-1"], [0, 2, None], [1, None, None]),  # two lines for one record
        (["id-2", "0"], [None, None, 0], [1, None, None]),  # a line by id for one, by key for another
        (["0", "1", "id-2"], [None, None, 2], [0, 1, None]),
    ],
)
def test_lines_that_join_both_ways_ask_for_the_parameter(write_tar, write_jsonl, keys, by_id, by_key):
    """Neither way is chosen silently; with sidecar_key it is the one that is said, by another index."""
    write_jsonl(scores_of(keys), "00000.meta.jsonl")
    url = write_tar(WITH_IDS)
    both_fail(
        url, ["score"], r"00000\.meta\.jsonl': .*, got both: a line for .*\n  Say .* sidecar_key: id, or sidecar_k"
    )
    assert [record["score"] for record in both_ways(url, ["score"], "id")] == by_id
    assert [record["score"] for record in both_ways(url, ["score"], "key")] == by_key


def test_an_id_that_is_the_key_leaves_no_doubt(write_tar, write_jsonl):
    """Both ways join the same line; a record without an id has its key."""
    write_jsonl(scores_of(["0", "id-1", "a/2"]), "00000.meta.jsonl")
    url = write_tar([("0.id", b"0"), ("1.id", b"id-1"), ("a/2.jpg", b"")])
    for sidecar_key in (None, "id"):
        assert [record["score"] for record in both_ways(url, ["score"], sidecar_key)] == [0, 1, 2]


@pytest.mark.parametrize("keys", [["7", "8"], []])
@pytest.mark.parametrize("sidecar_key", [None, "id", "key"])
def test_a_sidecar_of_which_no_line_joins_is_an_error(write_tar, write_jsonl, keys, sidecar_key):
    """It is another shard's, or empty, and every field would be None; both first keys are named."""
    write_jsonl(scores_of(keys), "00000.meta.jsonl")
    lines = "none that joins.*, the first is for '7'" if keys else "no line"
    message = rf"00000\.meta\.jsonl': .*the first is record '0'.* got {lines}"
    both_fail(write_tar(WITH_IDS), ["score"], message, sidecar_key)


def test_lines_for_a_shard_without_records_are_an_error(write_tar, write_jsonl):
    """No lines for none are fine."""
    sidecar = write_jsonl(scores_of("0"), "00000.meta.jsonl")
    both_fail(write_tar([]), ["score"], r"\(there is none\), got none that joins, the first is for '0'")
    Path(sidecar).write_bytes(b"")
    assert both_ways(write_tar([]), ["score"]) == []


def test_ids_need_not_be_text_where_keys_are_meant(write_tar, write_jsonl):
    """With sidecar_key: key they are members like others; the error says so."""
    write_jsonl(scores_of("0"), "00000.meta.jsonl")
    url = write_tar([("0.id", b"\xff")])
    both_fail(url, ["score"], r"expected text in its '\.id' member.*\n.*sidecar_key: key")
    assert both_ways(url, ["score"], "key")[0]["score"] == 0


@pytest.mark.parametrize(("names", "sidecar_key"), [(["score"], "stem"), (["score"], ""), ([], "id")])
def test_a_sidecar_key_that_says_nothing_is_refused(write_tar, names, sidecar_key):
    """It is id or key, for fields that are asked for."""
    with pytest.raises(ValueError, match="sidecar_key: expected"):
        MetaDistributedWebDataset(write_tar(WITH_IDS), meta_names=names, sidecar_key=sidecar_key)


def test_an_index_of_before_is_not_taken(write_tar, write_jsonl, tmp_path):
    """One that an earlier version wrote may say of each record that it has no line."""
    write_jsonl(scores_of("012"), "00000.meta.jsonl")
    url = write_tar(WITH_IDS)
    TarShards([url], ["score"])
    (path,) = tmp_path.glob(".*.join.index")
    path.rename(path.with_name(".00000.tar.meta.index"))
    assert both_ways(url, ["score"])[2]["score"] == 2


def test_a_missing_sidecar_is_an_error(write_tar):
    """When fields are asked for, a shard without a sidecar says which files were looked for."""
    with pytest.raises(ShardError, match=r"00000\.meta\.jsonl.*00000\.jsonl.*got none"):
        TarShards([write_tar(MEMBERS)], ["score"])
    assert len(read_all(TarShards([write_tar(MEMBERS)]))) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"key": "a/0", "n": 1}, {"key": "a/0", "n": 2}], r"jsonl:2:1: .*line 1 again, with another 'n'"),
        ([{"key": "a/0"}, {"key": "b"}, b"", {"key": "a/0", "n": 2}], r"jsonl:4:1: .*line 1 again, with more"),
        ([{"key": "a/0"}, {"key": "b", "n": 1}, {"key": "a/0"}, {"key": "a/0", "n": 2}], r"jsonl:4:1: .*with more"),
        ([{"key": "a/0"}, {"score": 1}], r"00000\.meta\.jsonl:2:1: expected a 'key'.*None"),
        ([{"key": True}], r"00000\.meta\.jsonl:1:1: expected a 'key'.*True"),
        ([{"key": "a/0"}, b'{"key": '], r"00000\.meta\.jsonl:2:9: "),
        ([{"key": "a/0", "n": 2**64}], r"00000\.meta\.jsonl:1:21: expected an integer"),
        ([b'["key"]', {"key": "a/0"}], r"00000\.meta\.jsonl:1:1: expected a JSON object, got list"),
        ([b'[{"key": "a/0"}]'], r"00000\.meta\.jsonl': expected a line per record, got a JSON array"),
    ],
)
def test_broken_sidecars_are_errors_with_their_place(write_tar, write_jsonl, lines, message):
    """A key twice, no key, or a broken line: file, line and column."""
    write_jsonl(lines, "00000.meta.jsonl")
    both_fail(write_tar(MEMBERS), ["score"], message)


def test_lines_are_searched_for_large_integers_together(write_tar, write_jsonl, monkeypatch):
    """When a sidecar is indexed, and when it is joined, only one that may hold some is looked at by itself."""
    write_jsonl([{"key": "a/0", "n": 1}, {"key": "a/1", "n": -(2**63)}], "00000.meta.jsonl")
    looked_at, url, flaw = [], write_tar(MEMBERS), json_rows.integer_flaw
    monkeypatch.setattr(json_rows, "integer_flaw", lambda line: looked_at.append(line) or flaw(line))
    shards = TarShards([url], ["n"])
    assert [line.count(b"-9223372036854775808") for line in looked_at] == [1]
    assert [record["n"] for record in read_all(shards)] == [1, -(2**63), None]
    assert [line.count(b"-9223372036854775808") for line in looked_at] == [1, 1]


def test_a_field_that_is_in_the_archive_too_is_an_error(write_tar, write_jsonl):
    """Neither of two values for one field is chosen silently."""
    write_jsonl([{"key": "a/0", "jpg": 1}], "00000.meta.jsonl")
    both_fail(write_tar(MEMBERS), ["jpg"], "record 'a/0': expected no field 'jpg'")


@pytest.mark.parametrize("names", ["score", ["score", "score"], ["__key__"], [3]])
def test_names_that_cannot_be_fields_are_refused(write_tar, write_jsonl, names):
    """A text in place of a list, a name twice, a reserved name."""
    write_jsonl(LINES, "00000.meta.jsonl")
    with pytest.raises(ValueError, match="meta_names"):
        MetaDistributedWebDataset(write_tar(MEMBERS), meta_names=names)


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


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_of_a_window_are_read_at_once(write_tar, write_jsonl, monkeypatch, end):
    """One read for all records of a run, in whatever order and however many at a time they are taken."""
    keys = [f"k{number:02}" for number in range(50)]
    sidecar = write_jsonl([{"key": key, "n": key} for key in keys], "00000.jsonl", end)
    window = whole(TarShards([write_tar([(f"{key}.x", b"") for key in keys])], ["n"]))
    reads, real = [], os.preadv

    def preadv(fd, parts, offset):
        reads.append(os.readlink(f"/proc/self/fd/{fd}"))
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    order = np.random.default_rng(0).permutation(50)
    found = [record["n"] for some in np.array_split(order, 7) for record in window.take(some)]
    assert found == [keys[place] for place in order]
    assert reads.count(sidecar) == 1


def test_lines_of_one_key_are_merged(write_tar, write_jsonl):
    """One after another with other fields, or anywhere with the same ones."""
    lines = [
        {"key": "a/0", "score": 1},
        {"key": "a/0", "more": 2},
        {"key": "a/0", "score": 1, "last": 3},
        {"key": "a/1", "score": 4},
        {"key": "a/0", "more": 2},
        {"key": "id-2", "score": 5},
        {"key": "a/1", "score": 4},
    ]
    write_jsonl(lines, "00000.meta.jsonl")
    records = both_ways(write_tar(MEMBERS), ["score", "more", "last"])
    got = [(record["score"], record["more"], record["last"]) for record in records]
    assert got == [(1, 2, 3), (4, None, None), (5, None, None)]
