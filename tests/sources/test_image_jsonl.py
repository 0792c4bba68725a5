"""Images that lines name: where they lie, and what their number costs."""

import json
import tracemalloc

import pytest

from streamdata import ImageJsonlDataset
from tests.shard_files import jpeg


def test_an_absolute_path_is_taken_as_it_is(tmp_path):
    """The image lies elsewhere than the JSONL file."""
    for name in ("lines", "images"):
        (tmp_path / name).mkdir()
    (tmp_path / "images" / "0.jpg").write_bytes(jpeg(0, size=9))
    line = {"imagepath": str(tmp_path / "images" / "0.jpg"), "label": "x"}
    (tmp_path / "lines" / "all.jsonl").write_text(json.dumps(line))
    record = ImageJsonlDataset(str(tmp_path / "lines" / "all.jsonl"))[0]
    assert (record["image"].size, record["label"]) == ((9, 9), "x")


def test_a_file_url_is_a_path(tmp_path):
    """Images lie beside the file that it names."""
    (tmp_path / "0.jpg").write_bytes(jpeg(0, size=9))
    (tmp_path / "all.jsonl").write_text('{"imagepath": "0.jpg"}\n')
    assert ImageJsonlDataset(f"file://{tmp_path}/all.jsonl")[0]["image"].size == (9, 9)


def test_compressed_lines_are_refused(tmp_path):
    """They were indexed as they are, and then no line was UTF-8."""
    with pytest.raises(ValueError, match=r"any line of which can be read, got '.*all\.jsonl\.gz'\n  Decompress it"):
        ImageJsonlDataset(str(tmp_path / "all.jsonl.gz"))


def test_a_missing_image_is_named(tmp_path):
    """By the path that was tried."""
    (tmp_path / "all.jsonl").write_text('{"imagepath": "gone.jpg"}\n')
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        ImageJsonlDataset(str(tmp_path / "all.jsonl"))[0]


def test_lines_are_not_held_in_memory(tmp_path):
    """A hundred times as many cost the same: their index is on disk."""

    def heap_of(name, size):
        path = tmp_path / name
        path.write_text('{"imagepath": "0.jpg"}\n' * size)
        ImageJsonlDataset(str(path))  # builds the index
        tracemalloc.start()
        dataset = ImageJsonlDataset(str(path))
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(dataset) == size
        return used

    heap_of("warm.jsonl", 10)
    # The rows of the index would be 160 KB more; less than that other threads of this process may take meanwhile.
    assert heap_of("large.jsonl", 20_000) < heap_of("small.jsonl", 200) + (64 << 10)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    """For the lines and for the images beside them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "0.jpg").write_bytes(jpeg(0, size=9))
    (tmp_path / "all.jsonl").write_text('{"imagepath": "0.jpg"}\n')
    assert ImageJsonlDataset("~/all.jsonl")[0]["image"].size == (9, 9)
