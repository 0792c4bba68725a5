"""How many records shards have that are read from their start, kept in the cache."""

import pytest

from streamdata.shards.record_counts import kept_count
from streamdata.shards.storage import FileStamp

STAMP = FileStamp(7, 7)


def kept(cache):
    """The one file of a count in the cache."""
    (path,) = (cache / "counts").rglob("?" * 32)
    return path


def test_a_shard_is_counted_once(cache):
    """Then its count is in the cache."""
    counts = iter([5])
    assert [kept_count("jsonl", "a.jsonl.gz", STAMP, lambda: next(counts)) for _ in range(2)] == [5, 5]
    assert kept(cache).read_text() == "5"


@pytest.mark.parametrize("is_link", [True, False])
def test_a_count_that_cannot_be_read_is_made_again(cache, caplog, is_link):
    """Said where it is the system that does not read it; what is damaged is passed over."""
    kept_count("jsonl", "a.jsonl.gz", STAMP, lambda: 4)
    path = kept(cache)
    path.unlink()
    path.symlink_to(path) if is_link else path.write_text("four")
    assert kept_count("jsonl", "a.jsonl.gz", STAMP, lambda: 5) == 5
    assert path.read_text() == "5"
    assert ("shard 'a.jsonl.gz': its count cannot be read" in caplog.text) == is_link
