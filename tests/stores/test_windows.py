import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.stores.datasets.window_datasets import FlatWindows, RowWindows
from streamdata.stores.factory import open_store
from streamdata.stores.writer import StoreWriter

sizes = st.integers(1, 9)


@given(num_tokens=st.integers(0, 60), size=sizes, stride=sizes)
def test_windows_over_tokens_are_those_of_a_loop(num_tokens, size, stride):
    """Each has its window and one token more; what lies after the last is counted."""
    begins = [begin for begin in range(0, num_tokens, stride) if begin + size + 1 <= num_tokens]
    windows = FlatWindows(num_tokens, size, stride)
    assert (len(windows), windows.locate(range(len(windows))).begins) == (len(begins), begins)
    assert windows.unused == num_tokens - (begins[-1] + size + 1 if begins else 0)


def test_a_thousand_million_windows_are_no_list():
    """Any of them is found at once."""
    windows = FlatWindows(10**15, 10**6, 10**6)
    assert windows.locate([len(windows) - 1]).begins == [(len(windows) - 1) * 10**6]


def rows_of(directory, lengths, storage_type="bin"):
    """A store of such rows."""
    with StoreWriter(storage_type, directory, {"sequence": "uint16"}, rows=True, max_tokens_per_shard=40) as writer:
        writer.extend({"sequence": np.arange(sum(lengths)) % 100}, lengths)
    return open_store(directory)


@pytest.mark.parametrize("storage_type", ["bin", "h5"])
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=30), size=sizes, stride=sizes)
def test_windows_in_rows_are_those_of_a_loop(tmp_path_factory, storage_type, lengths, size, stride):
    """They never cross a row; the last target is missing exactly where a window ends with its row."""
    expected, row_begin, unused = [], 0, 0
    for length in lengths:
        begins = [begin for begin in range(0, length, stride) if begin + size <= length]
        expected += [(row_begin + begin, begin + size == length) for begin in begins]
        unused += length - min(begins[-1] + size + 1, length) if begins else length
        row_begin += length
    windows = RowWindows(rows_of(tmp_path_factory.mktemp("rows"), lengths, storage_type), "sequence", size, stride)
    begins, at_row_end = windows.locate(range(len(windows)))
    assert list(zip(begins, at_row_end or [False] * len(begins), strict=True)) == expected
    assert windows.unused == unused


def test_many_uneven_rows_are_found_in_their_chunk(tmp_path, monkeypatch):
    """One number per 512 rows is kept, not one per row."""
    lengths = [2 + number % 3 for number in range(2000)]
    with StoreWriter("bin", tmp_path, {"sequence": "uint16"}, rows=True) as writer:
        writer.extend({"sequence": np.zeros(sum(lengths), np.uint16)}, lengths)
    windows = RowWindows(open_store(tmp_path), "sequence", 3, 1)
    begins = np.cumsum([0, *lengths])
    expected = [int(begins[row]) + inner for row, length in enumerate(lengths) for inner in range(length - 2)]
    assert windows.locate(range(len(windows))).begins == expected
    assert len(windows._ends) == 4
