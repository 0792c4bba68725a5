import struct

import numpy as np
import pytest

from streamdata.stores.factory import verify
from tests.stores.tiny_stores import write, write_old_bin, write_old_h5, write_old_megatron, write_rows


@pytest.mark.parametrize("storage_type", ["bin", "h5", "megatron"])
def test_a_sound_store_has_no_problems(tmp_path, storage_type):
    """With the vocabulary it was written for."""
    assert verify(write(storage_type, tmp_path), vocab_size=50_000) == []


@pytest.mark.parametrize("train_type", ["sft", "dpo", "grpo"])
def test_every_train_type_can_be_verified(tmp_path, train_type):
    """Masks and rewards are no token ids."""
    for storage_type in ("bin", "h5"):
        assert verify(write(storage_type, tmp_path / storage_type, train_type), vocab_size=50_000) == []


def test_older_stores_can_be_verified(tmp_path):
    """As far as they say anything."""
    write_old_bin(tmp_path / "a" / "shard_0", {"sequence": np.arange(6, dtype=np.uint8)}, {"sequence": [0, 2]})
    write_old_h5(tmp_path / "b" / "data_0.h5", {"sequence": [np.arange(6)]}, chunks=(2,))
    assert verify(tmp_path / "a", 6) == verify(tmp_path / "b", 6) == []
    assert "got 5 at position 5" in verify(tmp_path / "b", 5)[0]


@pytest.mark.parametrize("storage_type", ["bin", "h5"])
def test_a_changed_byte_is_found(tmp_path, storage_type):
    """By the checksum of its array."""
    write(storage_type, tmp_path)
    path = tmp_path / ("shard_0001/sequence.bin" if storage_type == "bin" else "data_0001.h5")
    data = bytearray(path.read_bytes())
    at = data.rindex(struct.pack("<HH", 7 * 100 * 5 % 50_000, 7 * (100 * 5 + 1) % 50_000))
    data[at] ^= 1
    path.write_bytes(data)
    by_array, by_block = verify(tmp_path)
    assert str(path) in by_array
    assert "expected checksum" in by_array
    assert f"file '{path}': expected the block of 4096 bytes at {at // 4096 * 4096} to be" in by_block


def test_changed_offsets_are_found(tmp_path):
    """By their checksum and by what they say."""
    write_rows("bin", tmp_path, [5, 5, 6], [[2, 3], [5], [1, 5]])
    np.array([0, 10, 5, 16], "<i8").tofile(tmp_path / "shard_0000" / "sequence.records.bin")
    problems = verify(tmp_path)
    assert sum("expected checksum" in problem for problem in problems) == 1
    assert sum("The offsets are damaged" in problem for problem in problems) == 3


def test_ids_outside_the_vocabulary_are_found(tmp_path):
    """With file and position."""
    (problem,) = verify(write("bin", tmp_path, records=4), vocab_size=2100)
    assert "expected token ids below 2100, got 2100 at position 12" in problem


def test_an_infinite_id_is_found(tmp_path):
    """Tokens may be fractions by mistake."""
    np.save(tmp_path / "a.npy", np.array([1, np.inf], "<f4"))
    (problem,) = verify(tmp_path / "a.npy", vocab_size=9)
    assert "expected token ids below 9, got inf at position 1" in problem


@pytest.mark.parametrize(
    ("at", "format_", "value", "message"),
    [
        (34 + 4, "<i", 2, "name.idx': expected run 1 within 0 to 6, got 3 to 4"),
        (34 + 12 + 8, "<q", 0, "name.idx': expected run 0 within 0 to 6, got 0 to 0"),
        (34 + 12 + 24 + 8, "<q", 9, "document index of"),
    ],
)
def test_damage_of_a_megatron_index_is_found(tmp_path, at, format_, value, message):
    """It has no checksums, but must be one sequence after another."""
    write_old_megatron(tmp_path / "name", [[1, 2, 3], [4], [5, 6]], 4, "int32", [0, 2, 3])
    data = bytearray((tmp_path / "name.idx").read_bytes())
    struct.pack_into(format_, data, at, value)
    (tmp_path / "name.idx").write_bytes(data)
    assert message in verify(tmp_path)[0]


def test_what_cannot_be_loaded_is_a_problem(tmp_path):
    """The only one then; a path that is not there is an error."""
    path = write("bin", tmp_path) / "shard_0000" / "sequence.bin"
    path.write_bytes(b"")
    assert len(verify(tmp_path)) == 1
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "none")
