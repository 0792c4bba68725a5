"""The page of a dictionary."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdata.shards.parquet.pages import dictionary_page, longest_value


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


FIELDS = {
    "kind": b"\x15\x04",
    "size": b"\x15\x20",
    "stored": b"\x15\x20",
    "own": b"\x4c\x15\x06\x15\x00\x00",
    "end": b"\x00",
}


def test_a_header_has_its_fields() -> None:
    header = b"".join(FIELDS.values())
    assert dictionary_page(header + b"rest") == (len(header), 16, 16, 3)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": b"\x16\x04"},  # of 64 bits: pyarrow passes over it
        {"size": b"\x15\x21"},
        {"own": b"\x45\x06"},
        {"end": b"\x15\x00\x00"},
    ],
)
def test_a_header_that_writers_do_not_write_is_refused(other: dict[str, bytes]) -> None:
    """Pyarrow may read it as something else."""
    with pytest.raises(ValueError, match="no header"):
        dictionary_page(b"".join({**FIELDS, **other}.values()) + b"rest")


@pytest.mark.parametrize("header", [b"", b"\x15", b"\x15\x04\x15\xff", b"\x15\x04\x00", b"\x88", b"\x1c" * 300])
def test_what_is_no_header_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="no header"):
        dictionary_page(header)


def test_values_fill_their_page() -> None:
    page = b"\1\0\0\0a\3\0\0\0bcd"
    assert longest_value(page, 2) == 3
    assert [longest_value(page, count) for count in (0, 1, 3)] == [None] * 3
    assert longest_value(page[:-1], 2) is None
