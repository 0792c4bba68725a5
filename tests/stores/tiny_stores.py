"""Tiny stores for tests: of every format and train type, and old layouts written by hand."""

import json
import struct
from pathlib import Path

import h5py
import numpy as np

from streamdata.stores.writer import StoreWriter

FORMATS = ["bin", "h5", "megatron"]
"""A new format is named here, and tested as the others are."""

KEYS = {
    "seq": {"sequence": "uint16"},
    "sft": {"sequence": "uint16", "loss_mask": "bool", "position_ids": "int32"},
    "dpo": {"chosen": "uint16", "rejected": "uint16", "chosen_mask": "bool", "rejected_mask": "bool"},
    "grpo": {"prompts": "uint16", "responses": "uint16", "masks": "bool", "rewards": "float32"},
}
ITEMS = {"grpo": ("responses", "masks")}


def tokens(begin: int, count: int) -> list[int]:
    """Ids that tell their place."""
    return [(7 * number) % 50_000 for number in range(begin, begin + count)]


def record(train_type: str, number: int) -> dict:
    """Record `number` of each train type; lengths differ."""
    size = 3 + number % 5
    ids = tokens(100 * number, size)
    if train_type == "seq":
        return {"sequence": ids}
    if train_type == "sft":
        return {"sequence": ids, "loss_mask": [place % 2 == 1 for place in range(size)], "position_ids": range(size)}
    if train_type == "dpo":
        masks = {"chosen_mask": [True] * size, "rejected_mask": [False, True, True]}
        return {"chosen": ids, "rejected": ids[:3], **masks}
    responses = [ids, ids[:2], ids[:3]]
    masks = [[True] * len(run) for run in responses]
    return {"prompts": ids[:2], "responses": responses, "masks": masks, "rewards": [0.5, -1.0, number]}


def write(storage_type: str, directory: Path, train_type: str = "seq", records: int = 12, **options: object) -> Path:
    """A store of several shards."""
    options = {"max_tokens_per_shard": 20, "items": ITEMS.get(train_type, ()), **options}
    with StoreWriter(storage_type, directory, KEYS[train_type], **options) as writer:
        for number in range(records):
            writer.append(record(train_type, number))
    return directory


def write_rows(
    storage_type: str, directory: Path, lengths: list[int], documents: list[list[int]] | None = None
) -> Path:
    """An `sft` store of packed rows, whose tokens count up through all of it."""
    begin = 0
    with StoreWriter(storage_type, directory, KEYS["sft"], rows=True, max_tokens_per_shard=20) as writer:
        for number, length in enumerate(lengths):
            row = {
                "sequence": range(begin, begin + length),
                "loss_mask": [True] * length,
                "position_ids": range(length),
            }
            writer.append(row, documents[number] if documents else None)
            begin += length
    return directory


def write_old_bin(directory: Path, arrays: dict[str, np.ndarray], offsets: dict[str, list[int]] | None = None) -> Path:
    """A shard whose meta.json is only {key: {shape, dtype[, offsets]}}."""
    directory.mkdir(parents=True)
    meta = {}
    for key, array in arrays.items():
        directory.joinpath(f"{key}.bin").write_bytes(array.tobytes())
        meta[key] = {"shape": list(array.shape), "dtype": str(array.dtype)}
        if offsets and key in offsets:
            meta[key]["offsets"] = offsets[key]
    directory.joinpath("meta.json").write_text(json.dumps(meta))
    return directory


def write_old_h5(path: Path, arrays: dict[str, list[np.ndarray]], **options: object) -> Path:
    """A file with a group per key and datasets data_0, data_1 …, and nothing more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, parts in arrays.items():
            for number, part in enumerate(parts):
                file.create_dataset(f"{key}/data_{number}", data=part, **options)
    return path


def write_old_megatron(prefix: Path, sequences: list[list[int]], code: int, dtype: str, documents: list[int]) -> Path:
    """A pair, byte by byte as the description has it."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    size = np.dtype(dtype).itemsize
    lengths = [len(ids) for ids in sequences]
    pointers = [size * sum(lengths[:number]) for number in range(len(lengths))]
    prefix.with_suffix(".bin").write_bytes(b"".join(np.array(ids, dtype).tobytes() for ids in sequences))
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, code, len(sequences), len(documents))
        + struct.pack(f"<{len(lengths)}i", *lengths)
        + struct.pack(f"<{len(pointers)}q", *pointers)
        + struct.pack(f"<{len(documents)}q", *documents)
    )
    return prefix.parent
