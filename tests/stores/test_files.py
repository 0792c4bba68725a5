import os

import pytest

from streamdata.errors import StoreError
from streamdata.stores.datasets.window_datasets import SeqDataset
from streamdata.stores.factory import StoreFactory, detect_format, open_store
from streamdata.stores.store import natural, store_files
from tests.stores.tiny_stores import write, write_old_megatron


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
    """Nothing there, or a file of no known name."""
    with pytest.raises(FileNotFoundError, match="got nothing there"):
        detect_format(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"or \*\.ds, got file\n"):
        detect_format(tmp_path / "file")


@pytest.mark.parametrize("path", ["name", "name.bin", "name.idx"])
def test_a_pair_is_named_with_or_without_its_suffix(tmp_path, path):
    """Also beside others, and where Megatron's folder of indices has its name."""
    for name in ("name", "other"):
        write_old_megatron(tmp_path / name, [[1, 2], [3]], 4, "int32", [0, 2])
    (tmp_path / "name" / "cache").mkdir(parents=True)
    (tmp_path / "name" / "cache" / "document_index.npy").touch()
    assert detect_format(tmp_path / path) == "megatron"
    assert open_store(tmp_path / path).fetch(0, 3, "sequence").tolist() == [1, 2, 3]


def test_a_store_is_the_same_by_its_directory_and_by_its_file(tmp_path):
    """So that states go on when a recipe names one in place of the other."""
    write_old_megatron(tmp_path / "a" / "name", [[1, 2], [3]], 4, "int32", [0, 2])
    write("h5", tmp_path / "b", records=4)
    for directory, path in (("a", "a/name"), ("b", "b/data_0000.h5")):
        assert open_store(tmp_path / directory).identity == open_store(tmp_path / path).identity


@pytest.mark.parametrize("suffix", ["h5", "hdf5"])
def test_a_single_h5_file_is_a_store(tmp_path, suffix):
    """One of several in its directory."""
    write("h5", tmp_path)
    path = (tmp_path / "data_0001.h5").rename(tmp_path / f"mine.{suffix}")
    assert detect_format(path) == "h5"
    assert len(SeqDataset(path, 4)) < len(SeqDataset(tmp_path, 4))


@pytest.mark.parametrize(("gone", "path"), [("idx", "name"), ("bin", "name"), ("bin", "name.idx")])
def test_half_a_pair_that_is_named_is_an_error(tmp_path, gone, path):
    """A `.bin` alone may be another format, and is read where it is named itself."""
    write_old_megatron(tmp_path / "name", [[1, 2], [3]], 4, "int32", [0, 2])
    (tmp_path / f"name.{gone}").unlink()
    with pytest.raises(StoreError, match=r"expected name\.bin and name\.idx, got only name\."):
        open_store(tmp_path / path)


def test_files_are_in_natural_order_without_temporaries(tmp_path):
    """shard_2 before shard_10; links to directories are followed, but not in circles."""
    for name in ("shard_10", "shard_2", ".shard_3.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.bin").touch()
    (tmp_path / ".y.bin").touch()
    os.symlink(tmp_path, tmp_path / "shard_2" / "up")
    os.symlink(tmp_path / "shard_10", tmp_path / "shard_11")
    assert store_files(tmp_path)[1] == ["shard_2/x.bin", "shard_10/x.bin", "shard_11/x.bin"]


def test_natural_order_compares_numbers_as_numbers():
    """And text as text."""
    assert sorted(["a10", "a9", "b1", "a"], key=natural) == ["a", "a9", "a10", "b1"]


def test_the_factory_of_stores_takes_what_a_dataset_takes(tmp_path):
    """A prefix, its files, or a file that does not say its dtype."""
    prefix = write_old_megatron(tmp_path / "a b", [[1, 2], [], [3]], 8, "uint16", [0, 1, 2, 3]) / "a b"
    for path in (prefix, f"{prefix}.bin", f"{prefix}.idx"):
        assert StoreFactory.load(path).fetch(0, 3, "sequence").tolist() == [1, 2, 3]
    (tmp_path / "x.npy").write_bytes(bytes([1, 0, 2, 0]))
    assert StoreFactory.load(tmp_path / "x.npy", dtype="uint16").fetch(0, 2, "sequence").tolist() == [1, 2]
