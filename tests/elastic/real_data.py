"""What the real processes read: tars, JSONL, compressed JSONL, a token store and documents that a packer joins."""

import gzip
from pathlib import Path

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, SeqDataset, StoreWriter, named
from tests.elastic.functions import DocumentPacker, required_parts, token
from tests.shard_files import write_jsonl, write_tars

SIZES = {"tars": 480, "lines": 600, "zipped": 180, "windows": 300, "documents": 400}
"""Records of each source."""
_WINDOW = 4


def write(folder: Path) -> None:
    """Write all of it."""
    write_tars(folder / "tars", [200, 120, 160], sidecars=False)
    write_jsonl(folder / "lines", [100, 260, 240])
    write_jsonl(folder / "documents", [250, 150])
    write_jsonl(folder / "zipped", [80, 60, 40])
    for path in sorted((folder / "zipped").glob("*.jsonl")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    with StoreWriter("bin", folder / "windows", {"sequence": "uint16"}, max_tokens_per_shard=200) as writer:
        writer.append({"sequence": range(SIZES["windows"] * _WINDOW + 1)})


def open_mixture(folder: Path, weights: dict) -> MergedDataset:
    """The sources as one finite stream, each record once."""
    packed = {"process_fn": DocumentPacker()}
    sources = [
        MetaDistributedWebDataset(str(folder / "tars"), block_size=8, shuffle_buffer=32, name="tars"),
        JsonlIterableDataset(str(folder / "lines"), block_size=5, shuffle_buffer=20, name="lines"),
        JsonlIterableDataset(str(folder / "zipped"), shuffle_buffer=10, name="zipped"),
        named(SeqDataset(folder / "windows", window_size=_WINDOW), name="windows", percent=1),
        JsonlIterableDataset(str(folder / "documents"), block_size=4, shuffle_buffer=20, name="documents", **packed),
    ]
    for source in sources:
        source.percent = weights.get(source.name, 1)
    return MergedDataset(sources, cyclic=False, stop="all_exhausted", seed=11)


def tokens_of_real(sample: dict) -> list:
    """What a sample delivers."""
    if "tokens" in sample:
        return sample["tokens"]
    return [token({"value": sample["__index__"], **sample} if "__index__" in sample else sample)]


def all_tokens() -> dict:
    """By source, without the seed of the epoch: what a pass must deliver."""
    functions = {"documents": "packer"}
    return {
        name: {(value, *part) for value in range(size) for part in required_parts(functions.get(name, "plain"), value)}
        for name, size in SIZES.items()
    }
