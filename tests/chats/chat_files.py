"""Parquet files of a few conversations."""

import pyarrow as pa
import pyarrow.parquet as pq


def user(text, **more):
    """What a user says."""
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    """What the assistant says."""
    return {"role": "assistant", "content": text, **more}


def write(path, rows):
    """Write rows as parquet; return the path as text."""
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def chats(path, count=12):
    """Conversations of one turn and of two."""
    rows = [[user(f"what is {number}"), assistant("a good answer" + " is" * number)] for number in range(count)]
    return write(path, [{"messages": row + row[: number % 2 * 2]} for number, row in enumerate(rows)])
