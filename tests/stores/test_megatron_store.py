import struct

import numpy as np
import pytest

from streamdata.errors import StoreError
from streamdata.stores.datasets.window_datasets import SeqDataset
from streamdata.stores.factory import open_store
from streamdata.stores.megatron_store import CODES
from tests.stores.tiny_stores import write, write_old_megatron

SEQUENCES = [[1, 2, 3], [4], [5, 6]]
LENGTHS_AT, POINTERS_AT, DOCUMENTS_AT = 34, 34 + 12, 34 + 12 + 24


@pytest.mark.parametrize(("code", "name"), CODES.items())
def test_a_pair_written_by_hand_is_read(tmp_path, code, name):
    """Of every dtype; sequences are records, documents those of the document index."""
    store = open_store(write_old_megatron(tmp_path / "name", SEQUENCES, code, name, [0, 2, 3]))
    assert store.fetch(0, 6, "sequence").tolist() == [1, 2, 3, 4, 5, 6]
    assert [store.fetch_record(number, "sequence").tolist() for number in range(3)] == SEQUENCES
    assert store.document_starts("sequence", 0, 6).tolist() == [4]


def test_pairs_are_joined_in_order(tmp_path):
    """Of several directories whatever their names, and in one as our writer names them."""
    for name, first in (("b/x_text_document", 5), ("a/data_0001", 3), ("a/data_0000", 1)):
        write_old_megatron(tmp_path / name, [[first], [first + 1]], 4, "int32", [0, 1, 2])
    store = open_store(tmp_path)
    assert store.fetch(0, 6, "sequence").tolist() == [1, 2, 3, 4, 5, 6]
    assert store.document_starts("sequence", 0, 6).tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("names", [("wiki_2023", "wiki_2024"), ("code_text_document", "data_0000")])
def test_several_corpora_in_one_directory_are_an_error_that_names_them(tmp_path, names):
    """One store of both would be a mixture that nobody chose."""
    for name in names:
        write_old_megatron(tmp_path / "corpora" / name, SEQUENCES, 4, "int32", [0, 3])
    with pytest.raises(StoreError, match=rf"/corpora': expected one pair .* got 2 names: {', '.join(names)}"):
        open_store(tmp_path)


def test_modes_of_a_multimodal_index_are_a_key(tmp_path):
    """One for each sequence; windows take all tokens, as those of Megatron do."""
    write_old_megatron(tmp_path / "name", SEQUENCES, 4, "int32", [0, 2, 3])
    with (tmp_path / "name.idx").open("ab") as file:
        file.write(bytes([0, 1, 0]))
    store = open_store(tmp_path / "name")
    assert [store.fetch_record(number, "mode").tolist() for number in range(3)] == [[0], [1], [0]]
    assert [store.fetch_record(number, "sequence").tolist() for number in range(3)] == SEQUENCES
    assert SeqDataset(tmp_path / "name", 5)[0]["target_ids"].tolist() == [2, 3, 4, 5, 6]


def test_our_writer_writes_what_megatron_core_reads(tmp_path):
    """Its own reader, where it is installed."""
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    write("megatron", tmp_path)
    store = open_store(tmp_path)
    dataset = indexed.IndexedDataset(str(tmp_path / "data_0000"))
    assert [ids.tolist() for ids in dataset] == [store.fetch_record(number, "sequence").tolist() for number in range(4)]
    assert dataset.document_indices.tolist() == [0, 1, 2, 3, 4]


def patched(tmp_path, at, format_, *values):
    """A pair with other bytes at a place of its index."""
    directory = write_old_megatron(tmp_path / "name", SEQUENCES, 4, "int32", [0, 2, 3])
    data = bytearray((tmp_path / "name.idx").read_bytes())
    struct.pack_into(format_, data, at, *values)
    (tmp_path / "name.idx").write_bytes(data)
    return directory


HEADERS = [
    ((0, "<9s", b"MMIDIDX\x00\x01"), "expected the magic"),
    ((9, "<Q", 2), "got version 2"),
    ((17, "<B", 9), "code 9"),
    ((17, "<B", 0), "code 0"),
    ((18, "<Q", 2**60), "expected .* bytes for 1152921504606846976 sequences"),
    ((26, "<Q", 2**63), "expected .* bytes for 3 sequences"),
    ((17, "<B", 8), "expected 10 tokens of uint16.*got 12"),
    ((LENGTHS_AT + 8, "<i", -2), "expected 2 tokens"),
    ((POINTERS_AT + 16, "<q", 2**40), "expected 274877906946 tokens"),
    ((POINTERS_AT, "<q", 4), "as in"),
    ((DOCUMENTS_AT, "<q", 1), "expected a document index from 0 to 3"),
    ((DOCUMENTS_AT + 16, "<q", 7), r"got \[0, 7\]"),
]


@pytest.mark.parametrize(("patch", "message"), HEADERS)
def test_a_damaged_index_is_an_error(tmp_path, patch, message):
    """Sizes are checked before counts are used."""
    with pytest.raises(StoreError, match=message):
        open_store(patched(tmp_path, *patch))


LATER = [
    (LENGTHS_AT + 4, "<i", 2),  # overlaps the next
    (LENGTHS_AT + 4, "<i", -1),
    (POINTERS_AT + 8, "<q", -8),
    (POINTERS_AT + 8, "<q", 13),
    (POINTERS_AT + 8, "<q", 1000),
]


@pytest.mark.parametrize("patch", LATER)
def test_a_damaged_sequence_is_an_error_when_it_is_used(tmp_path, patch):
    """Pointers that are negative, uneven, too large or overlap."""
    store = open_store(patched(tmp_path, *patch))
    with pytest.raises(StoreError, match="The offsets are damaged"):
        store.fetch_record(1, "sequence")


@pytest.mark.parametrize("entry", [-1, 4, 2**40])
def test_a_damaged_document_index_is_an_error_when_it_is_used(tmp_path, entry):
    """An entry that is no sequence."""
    store = open_store(patched(tmp_path, DOCUMENTS_AT + 8, "<q", entry))
    with pytest.raises(StoreError, match="document index"):
        store.document_starts("sequence", 0, 6)


@pytest.mark.parametrize(("name", "cut"), [("name.bin", 4), ("name.bin", 1), ("name.idx", 8), ("name.idx", 90)])
def test_files_that_were_cut_short_are_an_error(tmp_path, name, cut):
    """Either of the two."""
    write_old_megatron(tmp_path / "name", SEQUENCES, 4, "int32", [0, 2, 3])
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-cut])
    with pytest.raises(StoreError, match=f"{name}': expected"):
        open_store(tmp_path)


@pytest.mark.parametrize("name", ["name.bin", "name.idx"])
def test_half_a_pair_is_an_error(tmp_path, name):
    """The index comes last, so a writer may have been killed between the two."""
    write_old_megatron(tmp_path / "name", SEQUENCES, 4, "int32", [0, 2, 3])
    (tmp_path / name).rename(tmp_path / f"other{name[-4:]}")
    with pytest.raises(StoreError, match=r"only one of .*'name', 'other'"):
        open_store(tmp_path)


def test_a_pair_without_sequences_is_empty(tmp_path):
    """Nothing to read is no damage."""
    write_old_megatron(tmp_path / "a" / "name", [], 4, "int32", [0])
    write_old_megatron(tmp_path / "b" / "other", SEQUENCES, 4, "int32", [0, 3])
    assert np.array_equal(open_store(tmp_path).fetch(0, 6, "sequence"), [1, 2, 3, 4, 5, 6])
