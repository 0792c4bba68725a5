import os
from pathlib import Path

import pytest

from streamdata import MergedDataset, MetaDistributedWebDataset, write_shards
from streamdata.shards.index.manifest import NAME, open_manifest


def samples(count, size=100):
    """With a member and two fields for the sidecar."""
    return [{"__key__": f"k{n}", "jpg": bytes([n]) * size, "score": n, "text": f"é{n}"} for n in range(count)]


def read(folder, **options):
    """What a source reads of the folder, in order."""
    source = MetaDistributedWebDataset(str(folder), shuffle_buffer=0, name="s", percent=1, **options)
    return list(MergedDataset([source], cyclic=False, shuffle_streaming_subsets=False))


def test_what_is_written_is_read_again_by_a_manifest(tmp_path, monkeypatch):
    """Members from the tars, other fields from the sidecars; nothing is indexed when it is read."""
    pattern = str(tmp_path / "out/{:03d}.tar")
    urls = write_shards(samples(7), pattern, max_records=3, sidecar=["score", "text"])
    assert urls == [pattern.format(number) for number in range(3)]
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == sorted(
        [NAME, *(f"00{n}{end}" for n in range(3) for end in (".tar", ".meta.jsonl"))]
    )
    monkeypatch.setattr("streamdata.shards.index.indexing.build_each", None)
    found = read(tmp_path / "out", meta_names=["score", "text"])
    assert [
        {name: record[name] for name in sample} for record, sample in zip(found, samples(7), strict=True)
    ] == samples(7)


def test_bytes_are_written_as_they_are(tmp_path):
    """Whatever their field is called; webdataset's encoder would compress those of `.gz`."""
    data = [{"__key__": "a", "txt.gz": b"not compressed", "json": b"[1"}]
    write_shards(data, str(tmp_path / "{}.tar"), max_records=1)
    (record,) = read(tmp_path)
    assert (record["txt.gz"], record["json"]) == (b"not compressed", b"[1")


@pytest.mark.parametrize("max_bytes", [10240, 20480, 50000])
def test_no_shard_is_larger_than_it_may_be_and_none_smaller_than_it_need(tmp_path, max_bytes):
    """As written, headers, padding and end included; a sample that is larger alone is a shard of its own."""
    sizes = [700, 5000, 9000, 100, 30000, 1, 1, 60000, 4000]
    data = [{"__key__": str(number), "x": bytes(size)} for number, size in enumerate(sizes)]
    urls = write_shards(data, str(tmp_path / "{}.tar"), max_bytes=max_bytes)
    counts = open_manifest(str(tmp_path / NAME)).said.indexes["tar"]["num_records"].tolist()
    for url, count in zip(urls, counts, strict=True):
        assert os.path.getsize(url) <= max_bytes or count == 1
    for number, url in enumerate(urls[1:]):
        first = sum(counts[: number + 1])
        more = 512 + -(-sizes[first] // 512) * 512
        assert os.path.getsize(urls[number]) + more > max_bytes, url


@pytest.mark.parametrize("key", ["k" * 95, "k" * 300, "é", "a/" * 60 + "k"])
def test_long_names_and_those_in_other_letters_count_with_all_their_headers(tmp_path, key):
    """Where each sample is one shard to the byte, it fits; and it comes back."""
    data = [{"__key__": f"{key}{n}", "x": bytes([n]) * 512} for n in range(40)]
    urls = write_shards(data, str(tmp_path / "{}.tar"), max_bytes=20480)
    assert len(urls) > 1
    assert all(os.path.getsize(url) == 20480 for url in urls[:-1])
    assert [record["__key__"] for record in read(tmp_path)] == [sample["__key__"] for sample in data]


def test_the_same_samples_are_the_same_bytes(tmp_path):
    """Whenever they are written."""
    for name in "ab":
        write_shards(samples(3), str(tmp_path / name / "{}.tar"), sidecar=["score", "text"])
    assert Path(tmp_path, "a/0.tar").read_bytes() == Path(tmp_path, "b/0.tar").read_bytes()


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"__key__": "a.b", "x": b""}, "the key"),
        ({"__key__": 3, "x": b""}, "a text in '__key__'"),
        ({"__key__": "a", "X": b""}, "lower case"),
        ({"__key__": "a", "x": "text"}, "got str in 'x'"),
        ({"__key__": "a", "s": 1}, "a field of bytes"),
        ({"__key__": "a", "x": b"", "s": object()}, "what JSON can say"),
        ({"__key__": "k", "x": b""}, "no other sample"),
    ],
)
def test_a_sample_that_would_not_come_back_is_refused(tmp_path, sample, message):
    """With its number and the remedy; nothing is left of the shard."""
    with pytest.raises(ValueError, match=rf"(?s)sample 1: .*{message}"):
        write_shards([{"__key__": "k", "x": b"1"}, sample], str(tmp_path / "{}.tar"), sidecar=["s"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pattern", ["x.tar", "{}.tar.gz", "{}", "{a}.tar", "s3://b/{}.tar", "pipe:cat > {}.tar"])
def test_a_pattern_that_names_no_shards_is_refused(pattern):
    """Before anything is written."""
    with pytest.raises(ValueError, match="write_shards: expected a"):
        write_shards([], pattern)


def test_what_is_there_is_not_written_over(tmp_path):
    """An earlier run's shards stay."""
    write_shards(samples(1), str(tmp_path / "{}.tar"), sidecar=["score", "text"])
    with pytest.raises(FileExistsError, match=r"0\.tar' is there already"):
        write_shards(samples(1), str(tmp_path / "{}.tar"), sidecar=["score", "text"])


def test_what_a_source_delivers_can_be_written(tmp_path):
    """The fields that streamdata sets are left out."""
    write_shards(samples(3), str(tmp_path / "a/{}.tar"), sidecar=["score", "text"])
    write_shards(read(tmp_path / "a"), str(tmp_path / "b/{}.tar"))
    assert [record["jpg"] for record in read(tmp_path / "b")] == [sample["jpg"] for sample in samples(3)]
