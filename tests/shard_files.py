"""Tiny shards for tests."""

import io
import json
from pathlib import Path

import webdataset
from PIL import Image


def jpeg(number: int, size: int = 12) -> bytes:
    """A small JPEG whose colour tells its number."""
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), (number % 256, 90, 180)).save(buffer, "JPEG")
    return buffer.getvalue()


def write_tars(folder: Path, sizes: list[int], *, images: bool = False, sidecars: bool = True) -> str:
    """Write one tar per size, with a sidecar each; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for shard, size in enumerate(sizes):
        lines = []
        with webdataset.TarWriter(str(folder / f"{shard:05}.tar"), mtime=0) as writer:
            for _ in range(size):
                key = f"r{number:05}"
                fields = {"jpg": jpeg(number)} if images else {"bin": bytes([number % 256]) * (number % 7)}
                writer.write({"__key__": key, "txt": f"text of {number}".encode(), **fields})
                lines.append(json.dumps({"key": key, "score": number / 2}))
                number += 1
        if sidecars:
            (folder / f"{shard:05}.meta.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


def write_jsonl(folder: Path, sizes: list[int]) -> str:
    """Write one JSONL shard per size; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for shard, size in enumerate(sizes):
        with (folder / f"{shard:05}.jsonl").open("w") as file:
            for _ in range(size):
                file.write(json.dumps({"value": number, "text": f"line {number} " * (number % 5 + 1)}) + "\n")
                number += 1
    return str(folder)
