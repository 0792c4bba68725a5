import os

import pytest

from streamdata.errors import StoreError
from streamdata.stores.files import detect_format, natural, store_files
from tests.stores.tiny_stores import write


@pytest.mark.parametrize("storage_type", ["bin", "h5", "megatron"])
def test_the_format_is_detected_from_the_files(tmp_path, storage_type):
    """At any depth."""
    write(storage_type, tmp_path / "task" / "part")
    assert detect_format(tmp_path) == storage_type


@pytest.mark.parametrize("others", [["h5", "bin"], ["h5", "megatron"], ["bin", "megatron"]])
def test_several_formats_are_an_error_that_names_them(tmp_path, others):
    """With files of each."""
    for storage_type in others:
        write(storage_type, tmp_path / storage_type)
    with pytest.raises(StoreError, match=f"expected one format, got 2: .*{others[0]} .*{others[1]}"):
        detect_format(tmp_path)


@pytest.mark.parametrize("names", [[], ["a.txt", "b.txt"], ["a.bin"], ["meta.json"], ["a.idx"]])
def test_no_format_is_an_error_that_lists_what_was_found(tmp_path, names):
    """Half of a pair is none."""
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(StoreError, match=f"got {', '.join(names) or 'no files'}"):
        detect_format(tmp_path)


def test_what_is_not_a_directory_is_an_error(tmp_path):
    """Nothing there, or a file."""
    with pytest.raises(FileNotFoundError, match="got nothing there"):
        detect_format(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="got a file"):
        detect_format(tmp_path / "file")


def test_files_are_in_natural_order_without_temporaries(tmp_path):
    """shard_2 before shard_10; links to directories are followed, but not in circles."""
    for name in ("shard_10", "shard_2", ".shard_3.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.bin").touch()
    (tmp_path / ".y.bin").touch()
    os.symlink(tmp_path, tmp_path / "shard_2" / "up")
    os.symlink(tmp_path / "shard_10", tmp_path / "shard_11")
    assert store_files(tmp_path) == ["shard_2/x.bin", "shard_10/x.bin", "shard_11/x.bin"]


def test_natural_order_compares_numbers_as_numbers():
    """And text as text."""
    assert sorted(["a10", "a9", "b1", "a"], key=natural) == ["a", "a9", "a10", "b1"]
