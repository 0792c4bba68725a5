import gzip
from pathlib import Path
from typing import Any

import streamdata
from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, describe
from tests.shard_files import write_tars
from tests.streams import Numbers
from tests.tools.view.functions import pairs, same


class Unreadable(Numbers):
    def __getitem__(self, index: int) -> dict:
        raise AssertionError("it was read")


def jsonl(folder: Path, name: str, percent: float, rows: int = 3, **options: object) -> JsonlIterableDataset:
    """Two shards of so many rows each."""
    for shard in range(2):
        (folder / f"{name}-{shard}.jsonl").write_text('{"value": 1}\n' * rows)
    dataset = JsonlIterableDataset(str(folder / f"{name}-*.jsonl"), **options)
    dataset.name, dataset.percent = name, percent
    return dataset


def line_of(text: str, name: str) -> str:
    """The one line of the tree that names a source."""
    (line,) = [line for line in text.splitlines() if f" {name} " in f" {line} "]
    return " ".join(line.split())


def test_each_source_has_a_line_with_weight_shares_and_sizes(tmp_path: Path) -> None:
    """In columns: percent, share of the parent, share of all, records, blocks."""
    inner = MergedDataset([jsonl(tmp_path, "text", 1, rows=6), Numbers("b", 1234, 3)])
    inner.name, inner.percent = "inner", 1
    text = describe(MergedDataset([inner, Numbers("a", 7, 1)]))
    assert line_of(text, "text").startswith("│ ├─ text 1 25 % 12.5 % 12 12 JsonlIterableDataset, 2 shards")
    assert line_of(text, "b").startswith("│ └─ b 3 75 % 37.5 % 1,234 1,234 Numbers")
    assert line_of(text, "inner").startswith("├─ inner 1 50 % 50 % 1,246 MergedDataset")
    assert line_of(text, "a").startswith("└─ a 1 50 % 50 % 7 7 Numbers")


def test_options_and_functions_are_shown(tmp_path: Path) -> None:
    """Those of the mixture on its line, those of a source on its own."""
    source = jsonl(tmp_path, "text", 1, process_fn=same)
    source.max_bad = 4
    dataset = MergedDataset([source], cyclic=False, seed=9, stop="all_exhausted", customized_yield_fn=pairs)
    dataset.max_bad = 7
    text = describe(dataset)
    assert "MergedDataset, seed 9, ends when all exhausted, max_bad 7, customized_yield_fn pairs" in text
    assert "JsonlIterableDataset, 2 shards, shuffled, max_bad 4, process_fn same" in text


def test_shuffling_is_that_of_the_nearest_mixture_and_the_kind_of_source(tmp_path: Path) -> None:
    """Sources of shards and map-style ones have a flag each."""
    sources = [jsonl(tmp_path, "text", 1), Numbers("a", 3)]
    text = describe(MergedDataset(sources, shuffle_streaming_subsets=False))
    assert line_of(text, "text").endswith("2 shards, not shuffled")
    assert line_of(text, "a").endswith("Numbers, shuffled")


def test_shards_stand_for_records_that_were_not_counted(tmp_path: Path) -> None:
    """Compressed shards are known by their number only."""
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"value": 1}\n'))
    source = JsonlIterableDataset(str(tmp_path / "x.jsonl.gz"))
    source.name, source.percent = "x", 1
    text = describe(MergedDataset([source]))
    assert line_of(text, "x").startswith("└─ x 1 100 % 100 % 1 shard 1 JsonlIterableDataset, read from the start")


def test_what_is_no_record_or_less_than_one_is_shown(tmp_path: Path) -> None:
    """Blank lines, and records of a tar that have no line in its sidecar."""
    (tmp_path / "x.jsonl").write_text('{"value": 1}\n\n  \r\n{"value": 2}\n')
    lines: Any = JsonlIterableDataset(str(tmp_path / "x.jsonl"))
    write_tars(tmp_path / "tars", [3])
    (tmp_path / "tars" / "00000.meta.jsonl").write_text('{"key": "r00001", "score": 1}\n')
    tars: Any = MetaDistributedWebDataset(str(tmp_path / "tars"), meta_names=["score"])
    for name, source in (("lines", lines), ("tars", tars)):
        source.name, source.percent = name, 1
    text = describe(MergedDataset([lines, tars]))
    assert line_of(text, "lines").endswith("1 shard, shuffled, blank lines 2")
    assert line_of(text, "tars").endswith("1 shard, shuffled, records without a sidecar line 2")


def test_describing_reads_no_data(tmp_path: Path) -> None:
    """Not an item, not a shard: here they are gone."""
    text = jsonl(tmp_path, "text", 1)
    for shard in tmp_path.glob("*.jsonl*"):
        shard.unlink()
    assert "6" in line_of(describe(MergedDataset([text, Unreadable("a", 7)])), "text")


def test_a_source_alone_is_the_mixture_of_it() -> None:
    """Which is finite."""
    source = Numbers("a", 3)
    assert describe(source) == describe(MergedDataset([source], cyclic=False))


def test_describe_is_exported_lazily() -> None:
    """`import streamdata` imports no room until it is asked for."""
    assert streamdata.describe is describe


def test_a_part_is_shown() -> None:
    """With the holdout that it is of."""
    text = describe(MergedDataset([Numbers("a", 1000, holdout=0.01, part="valid")]))
    assert "Numbers, shuffled, part valid of holdout 0.01" in line_of(text, "a")
