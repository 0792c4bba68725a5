"""Parquet files of a few prompts."""

import pyarrow as pa
import pyarrow.parquet as pq

from tests.sources.tiny_processors import picture, png

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def user(text):
    """A prompt of one message."""
    return [{"role": "user", "content": text}]


def write(path, rows, **columns):
    """Write rows as parquet, with the types of some columns; return the path as text."""
    table = pa.Table.from_pylist(rows)
    for name, kind in columns.items():
        values = pa.array([row.get(name) for row in rows], kind)
        at = table.schema.get_field_index(name)
        table = table.append_column(name, values) if at < 0 else table.set_column(at, name, values)
    pq.write_table(table, path, row_group_size=5)
    return str(path)


def sums(path, count=12, words=0):
    """Prompts of text, each a little longer than the one before where `words` is positive."""
    rows = [
        {
            "data_source": "sums",
            "prompt": user(f"What is the sum of {number} and {number}?" + " and more" * words * number),
            "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
            "extra_info": {"index": 100 + number},
        }
        for number in range(count)
    ]
    return write(path, rows)


def image(number):
    """An image as a data set of Hugging Face stores it."""
    return {"bytes": png(picture(8 + 8 * number, 16, number)), "path": None}


def mixed(path):
    """Rows with no, one, and two images, and one with a video."""
    rows = [
        {"prompt": user("Only text"), "images": [], "videos": None},
        {"prompt": user("Look at <image> and say what it is"), "images": [image(1)]},
        {"prompt": user("<image>What is the sum of this and <image>?"), "images": [image(2), image(0)]},
        {"prompt": user("See <video>now and <image>"), "images": [image(3)], "videos": [frames(4)]},
    ]
    return write(path, rows, images=IMAGES, videos=pa.list_(pa.list_(pa.binary())))


def frames(count):
    """A video's frames, as files of images."""
    return [png(picture(16, 16, number)) for number in range(count)]
