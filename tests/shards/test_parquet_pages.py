"""The page of a dictionary."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdata.shards.parquet_pages import dictionary_page, longest_value


def stored(values: list[str], **options: object) -> bytes:
    """The first column of a file, from its first page on."""
    file = io.BytesIO()
    pq.write_table(pa.table({"x": values}), file, compression="none", **options)
    data = file.getvalue()
    column = pq.read_metadata(file).row_group(0).column(0)
    return data[column.dictionary_page_offset or column.data_page_offset :]


@pytest.mark.parametrize("checksum", [False, True])
def test_a_page_is_as_large_as_its_header_says(checksum: bool) -> None:
    data = stored(["a", "bcd", "a", ""], write_page_checksum=checksum)
    page = dictionary_page(data)
    assert page is not None
    assert page[1:] == (16, 16, 3)
    assert data[page.begin : page.begin + page.stored] == b"\1\0\0\0a\3\0\0\0bcd\0\0\0\0"


def test_other_pages_are_no_dictionaries() -> None:
    """However long their headers are."""
    assert dictionary_page(stored(["x" * 1000], use_dictionary=False)[:64]) is None


def test_fields_come_in_any_order() -> None:
    """A header that begins with another field than writers do is read as pyarrow reads it."""
    header = b"\x25\x20" + b"\x05\x02\x04" + b"\x25\x20" + b"\x4c\x15\x06\x15\x00\x00" + b"\x00"
    assert dictionary_page(header + b"rest") == (len(header), 16, 16, 3)


@pytest.mark.parametrize("header", [b"", b"\x15", b"\x15\x04\x15\xff", b"\x15\x04\x00", b"\x88", b"\x1c" * 300])
def test_what_is_no_header_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="no header"):
        dictionary_page(header)


def test_values_fill_their_page() -> None:
    page = b"\1\0\0\0a\3\0\0\0bcd"
    assert longest_value(page, 2) == 3
    assert [longest_value(page, count) for count in (0, 1, 3)] == [None] * 3
    assert longest_value(page[:-1], 2) is None
