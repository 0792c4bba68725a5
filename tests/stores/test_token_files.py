import struct

import numpy as np
import pytest

from streamdata.errors import StoreError
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.factory import StoreFactory, detect_format, open_store, verify

TOKENS = [5, 6, 7, 0, 8, 9, 0, 65_535]


def llm_c(path, magic=20240520, version=1, count=8, dtype="<u2"):
    """What `write_datafile` of dev/data/data_common.py writes (llm.c at f1e2ace)."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, count
    path.write_bytes(header.tobytes() + np.array(TOKENS, dtype).tobytes())
    return path


def datatrove(path, token_size=2, ends=(4, 7, 8), metadata=None):
    """What `TokenizedFile` writes (pipeline/tokens/tokenizer.py of datatrove at a649de7)."""
    path.write_bytes(struct.pack(f"<8{'I' if token_size == 4 else 'H'}", *TOKENS))
    path.with_name(f"{path.name}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    path.with_name(f"{path.name}.metadata").write_text(metadata or f"gpt2|{token_size}\n8\n8 T")
    return path


def numpy_file(path, dtype):
    """A `.npy` with its header."""
    np.save(path, np.array(TOKENS, dtype))
    return path


def raw(path, dtype, count=8):
    """Tokens and nothing else: nanoGPT's `.bin`, OLMo's `.npy`."""
    path.write_bytes(np.array(TOKENS[:count], dtype).tobytes())
    return path


FILES = [
    ("a.bin", llm_c, None),
    ("b.bin", lambda path: llm_c(path, 20240801, 7, dtype="<u4"), None),
    ("c.bin", lambda path: raw(path, "<u2"), None),
    ("d.bin", lambda path: raw(path, "<u4"), "uint32"),
    ("e.npy", lambda path: numpy_file(path, "<u2"), None),
    ("f.npy", lambda path: numpy_file(path, "<i8"), "int64"),
    ("g.npy", lambda path: raw(path, "<u4"), "uint32"),
    ("h.ds", datatrove, None),
    ("i.ds", lambda path: datatrove(path, 4), "uint32"),
]


@pytest.mark.parametrize(("name", "write", "dtype"), FILES)
def test_a_file_of_tokens_is_a_store(tmp_path, name, write, dtype):
    """By its header or magic, its metadata, or a dtype that is given."""
    path = write(tmp_path / name)
    assert detect_format(path) == "tokens"
    dataset = DatasetFactory.load("seq", path, 7, dtype=dtype)
    assert dataset[0]["input_ids"].tolist() == TOKENS[:-1]
    assert dataset[0]["target_ids"].tolist() == TOKENS[1:]
    assert (dataset.num_tokens, verify(path) if dtype is None else []) == (8, [])


def test_documents_of_datatrove_are_those_of_its_index(tmp_path):
    """As records, and as marks in windows."""
    store = open_store(datatrove(tmp_path / "x.ds"))
    assert [store.fetch_record(number, "sequence").tolist() for number in range(3)] == [
        TOKENS[:4],
        TOKENS[4:7],
        [65_535],
    ]
    dataset = DatasetFactory.load("seq", tmp_path / "x.ds", 6, documents=True)
    assert dataset[0]["cu_seqlens"].tolist() == [0, 4, 6]


def test_losses_of_datatrove_are_a_mask(tmp_path):
    """For `sft`, whose positions are then counted."""
    datatrove(tmp_path / "x.ds")
    (tmp_path / "x.ds.loss").write_bytes(bytes([1, 1, 0, 1, 1, 1, 0, 0]))
    sample = DatasetFactory.load("sft", tmp_path / "x.ds", 7)[0]
    assert sample["loss_mask"].tolist() == [True, False, True, True, True, False, False]
    assert sample["position_ids"].tolist() == list(range(7))
    (tmp_path / "x.ds.loss").write_bytes(bytes(7))
    with pytest.raises(StoreError, match=r"x\.ds\.loss': expected 8 bytes, one for each token .* got 7"):
        open_store(tmp_path / "x.ds")


def test_a_directory_of_such_files_is_one_store(tmp_path):
    """In natural order; the files beside them are no stores."""
    for number in (10, 9):
        datatrove(tmp_path / f"{number}.ds")
    store = open_store(tmp_path)
    assert (len(store), store.num_records) == (16, 6)
    numpy_file(tmp_path / "x.npy", "<u2")
    with pytest.raises(StoreError, match=r"expected \*\.npy or \*\.ds, got both"):
        open_store(tmp_path)


BAD = [
    (lambda path: llm_c(path / "a.bin", count=9), r"a\.bin': expected 9 tokens of uint16 after 1024 bytes .* got 1040"),
    (lambda path: llm_c(path / "a.bin", version=2), r"a\.bin': expected version 1 of llm\.c's magic 20240520"),
    (lambda path: llm_c(path / "a.bin", 20240522), r"a\.bin': expected tokens, got questions with choices of llm\.c"),
    (lambda path: raw(path / "a.bin", "u1", 7), r"a\.bin': expected whole tokens of uint16"),
    (lambda path: raw(path / "a.npy", "<u2"), r"a\.npy': expected a file that says the dtype"),
    (lambda path: numpy_file(path / "a.npy", ">u2"), "expected a dtype of .* got '>u2'"),
    (lambda path: numpy_file(path / "a.npy", "<u8"), "expected a dtype of .* got '<u8'"),
    (lambda path: datatrove(path / "a.ds", ends=(4, 9)), r"a\.ds\.index': expected documents that end with .* at 9"),
    (lambda path: datatrove(path / "a.ds", metadata="gpt2|2\n9\n"), r"a\.ds': expected 9 tokens of uint16"),
    (lambda path: datatrove(path / "a.ds", metadata="gpt2\n9"), r"a\.ds\.metadata': expected the bytes of a token"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "message"), BAD)
def test_a_file_that_cannot_be_right_is_named(tmp_path, write, message):
    """Sizes that disagree, other data, what it does not say."""
    with pytest.raises(StoreError, match=message):
        open_store(write(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<u2', 'fortran_order': False, 'shape': (", "(" * 300, "-" * 9000 + "1", "if 1:\n  2\n 3", "{}", "",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (8,)} 1", "{'descr': '<u2', 'shape': (8,)}",
        "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (8,)}", "\xff", "{" + "'a': True, " * 2000 + "}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
    ],
)  # fmt: skip
def test_a_header_of_numpy_that_is_not_one_is_refused(tmp_path, text):
    """Without evaluating it: some of these end Python's own parser in five kinds of error."""
    content = text.encode("latin-1")
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(content)) + content + bytes(16))
    with pytest.raises(StoreError, match=r"a\.npy': expected (numpy's header|8 tokens|a dtype of)"):
        open_store(path)


@pytest.mark.filterwarnings("ignore:Reading `.npy`")  # as Python 2 wrote it
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("shape", ["(8,)", "( 8 , )", "(8L,)"])
def test_headers_of_numpy_are_read_as_old_versions_write_them_too(tmp_path, version, shape):
    """Of each version, in any sequence of the names, with Python 2's long integers."""
    text = f"{{'shape': {shape}, 'fortran_order': False, 'descr': '<u2', }}  \n".encode()
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY" + bytes(version) + size + text + np.array(TOKENS, "<u2").tobytes())
    assert open_store(tmp_path / "a.npy").fetch(0, 8, "sequence").tolist() == TOKENS


def test_other_damage_is_named_too(tmp_path):
    """A header cut short, two dimensions, ends that fall, an array of another store."""
    path = numpy_file(tmp_path / "a.npy", "<u2")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(StoreError, match=r"a\.npy': expected numpy's header, got"):
        open_store(path)
    np.save(path, np.zeros((2, 3), "<u2"))
    with pytest.raises(StoreError, match=r"a\.npy': expected one array of tokens, got shape \(2, 3\)"):
        open_store(path)
    store = open_store(datatrove(tmp_path / "a.ds", ends=(7, 4, 8)))
    with pytest.raises(StoreError, match="The offsets are damaged"):
        store.fetch_record(1, "sequence")
    (problem,) = verify(tmp_path / "a.ds")
    assert f"index '{tmp_path}/a.ds.index': expected run 1 within 0 to 8, got 7 to 4" in problem
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(StoreError, match=r"expected a store, got one of its arrays"):
        open_store(raw(tmp_path / "sequence.bin", "<u2"))


def test_a_dtype_that_contradicts_the_file_is_an_error(tmp_path):
    """Or is given to a format that has its own."""
    with pytest.raises(StoreError, match=r"expected tokens of uint16, as it says itself, got dtype=uint32"):
        open_store(datatrove(tmp_path / "a.ds"), dtype="uint32")
    with pytest.raises(ValueError, match="got dtype='uint16' for the format 'h5', which says it itself"):
        StoreFactory.create("h5", "uint16")
