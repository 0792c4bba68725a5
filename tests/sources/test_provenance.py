"""What rows and batches are made of: `source_ids` and `record_ids`, and the record that they name."""

import gzip
import json
import math
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from streamdata import (
    GroupByLength,
    GroupCollate,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    PackTokens,
    Pad,
    ParquetDataset,
    SourceError,
    StreamLoader,
    TensorCollate,
    TextJsonlProcessFnBuilder,
    mixed_collate,
    named,
)
from tests.shard_files import write_jsonl, write_tars
from tests.streams import Numbers, assert_exact_resume, loaded
from tests.text.tiny_tokenizer import save_tiny_tokenizer

NAMES = ("inner.lines", "inner.rows", "inner.zipped", "map", "tars")
SIZES = [7, 1, 12]
"""Records in each shard."""


def number_of(record: dict) -> int:
    """The number that the test gave a record of any kind."""
    return int(record["txt"].split()[-1]) if "txt" in record else record["value"]


def tokenized(record: dict) -> dict:
    """From 1 to 5 tokens, all of them the record's number."""
    number = number_of(record)
    return {"input_ids": torch.full((number % 5 + 1,), number)}


def copied(record: dict) -> list[dict]:
    """As many samples as tokens; each tells which one it is."""
    return [{"input_ids": torch.tensor([number_of(record), place])} for place in range(number_of(record) % 3)]


def copied_whole(record: dict) -> list[dict]:
    """The same samples, each with the fields of the record."""
    return [{**{name: record[name] for name in record if name.startswith("__")}, **sample} for sample in copied(record)]


def make(
    folder: Path, function: Callable | None = tokenized, source_fn: object = None, **settings: object
) -> MergedDataset:
    """A mixture of each kind of source, nested."""
    fns = {"single_process_fn": function, "process_fn": source_fn, "percent": 1}
    inner = [
        JsonlIterableDataset(str(folder / "lines"), name="lines", shuffle_buffer=4, **fns),
        ParquetDataset(str(folder / "rows"), name="rows", shuffle_buffer=4, **fns),
        JsonlIterableDataset(str(folder / "zipped" / "*.gz"), name="zipped", shuffle_buffer=4, **fns),
    ]
    tars = MetaDistributedWebDataset(str(folder / "tars"), name="tars", block_size=2, shuffle_buffer=4, **fns)
    rest = {name: value for name, value in fns.items() if name != "percent"}
    sources = [MergedDataset(inner, name="inner", percent=3), Numbers("map", 20, **rest), tars]
    return MergedDataset(sources, seed=3, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty records of each kind, in three shards."""
    path = tmp_path_factory.mktemp("provenance")
    write_tars(path / "tars", SIZES, sidecars=False)
    write_jsonl(path / "lines", SIZES)
    write_jsonl(path / "zipped", SIZES)
    for file in (path / "zipped").iterdir():
        with gzip.open(f"{file}.gz", "wb") as zipped:
            zipped.write(file.read_bytes())
        file.unlink()
    number = 0
    (path / "rows").mkdir()
    for shard, size in enumerate(SIZES):
        rows = pa.table({"value": range(number, number + size)})
        pq.write_table(rows, path / "rows" / f"{shard:05}.parquet", row_group_size=3)
        number += size
    return path


@pytest.fixture(scope="module")
def numbers(folder: Path) -> dict:
    """The number of each record, by its source and place."""
    found: dict = {("map", number): number for number in range(20)}
    for sample in islice(make(folder, None), 400):
        if "__url__" in sample:
            found[sample["__datasetname__"], sample["__url__"], sample["__key__"]] = number_of(sample)
    assert len(found) == 100
    return found


def looked_up(dataset: MergedDataset, numbers: dict, source: int, record: list[int]) -> int:
    """The number of the record that is named."""
    name = dataset.source_names[source]
    found = dataset.describe_record(source, record)
    assert found == dataset.describe_record(name, torch.tensor(record))
    return numbers[(name, *found.values())]


def documents(row: dict) -> Iterator[tuple[int, list[int], list[int]]]:
    """Of each document of a packed row its source, its record and its tokens."""
    bounds = pairwise(row["cu_seqlens"].tolist())
    for (begin, end), source, record in zip(bounds, row["source_ids"], row["record_ids"], strict=True):
        yield int(source), record.tolist(), row["input_ids"][begin:end].tolist()


@pytest.mark.parametrize("where", ["source", "mixture"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_document_of_a_row_is_of_the_record_that_is_named(folder, numbers, where, num_workers) -> None:
    """In any kind of source, packed there or over the mixture; and no record comes twice in an epoch."""
    packer = PackTokens(16, lookahead=5)
    settings = {"source_fn": packer} if where == "source" else {"customized_yield_fn": packer}
    dataset = make(folder, tokenized, **settings)
    assert dataset.source_names == NAMES
    seen: dict[tuple, list[int]] = {}
    for batch in islice(loaded(dataset, num_workers), 60):
        for row in batch:
            for source, record, tokens in documents(row):
                number = looked_up(dataset, numbers, source, record)
                assert tokens == [number] * (number % 5 + 1)
                seen.setdefault((source, *record), []).append(number)
    assert {source for source, *_ in seen} == set(range(5))
    assert max(epoch for _, epoch, *_ in seen) > 0
    assert all(len(found) == 1 for found in seen.values())


@pytest.mark.parametrize("function", [copied, copied_whole])
def test_samples_of_one_record_are_numbered(folder, numbers, function) -> None:
    """From 0, those of which a function made none left out; in a batch, and where a stream function passes them on."""
    dataset = make(folder, function, iter)
    for batch in islice(StreamLoader(dataset, 4, collate=TensorCollate()), 40):
        for source, record, ids in zip(
            batch["source_ids"], batch["record_ids"].tolist(), batch["input_ids"], strict=True
        ):
            assert ids.tolist() == [looked_up(dataset, numbers, int(source), record), record[2]]


def test_outputs_that_a_function_builds_anew_are_of_the_last_record_pulled(folder, numbers) -> None:
    """And numbered."""

    def twice(samples: Iterator[dict]) -> Iterator[dict]:
        for sample in samples:
            for place in range(2):
                yield {"input_ids": torch.cat([sample["input_ids"], torch.tensor([place])])}

    dataset = make(folder, tokenized, twice)
    for sample in islice(dataset, 40):
        source, *record = sample["__record__"]
        assert sample["input_ids"].tolist()[0] == looked_up(dataset, numbers, source, record)
        assert sample["input_ids"].tolist()[-1] == record[2]


def test_rows_without_bounds_say_it_of_each_document(tmp_path) -> None:
    """Which begin where positions are 0; padding is one of no record, and the last row is padded."""
    name = save_tiny_tokenizer(tmp_path / "tokenizer", text="line 0 1 2 3 4 5 6 7 8 9")
    texts = [{"text": f"line {number} " * (number % 4)} for number in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    make = lambda: MergedDataset(  # noqa: E731
        [
            JsonlIterableDataset(
                str(tmp_path / "a.jsonl"), name="a", percent=1, process_fn=TextJsonlProcessFnBuilder(8, name)
            )
        ],
        cyclic=False,
        seed=1,
    )
    rows = list(make())
    given: dict[int, int] = {}
    for row in rows:
        starts = (row["position_ids"] == 0).nonzero().flatten().tolist()
        assert len(starts) == len(row["source_ids"]) == len(row["record_ids"])
        for (begin, end), record in zip(pairwise([*starts, 8]), row["record_ids"].tolist(), strict=True):
            given[record[1]] = given.get(record[1], 0) + end - begin
    counts = {number: TextJsonlProcessFnBuilder(8, name).num_tokens(text) for number, text in enumerate(texts)}
    padded = given.pop(-1)
    assert given == {number: count for number, count in counts.items() if texts[number]["text"]}
    assert rows[-1]["record_ids"].tolist()[-1] == [-1, -1, -1]
    assert rows[-1]["loss_mask"].logical_not().sum() == padded + 1  # and the last token of all
    batch = TensorCollate()(rows)
    assert batch["tokens"].shape == (len(rows), 8)
    assert batch["source_ids"].shape == (int((batch["position_ids"] == 0).sum()),)
    assert_exact_resume(make, steps=8, beyond=0)


def test_batches_say_it_of_their_samples(folder) -> None:
    """Row after row, whatever the samples are: single, grouped, or windows that have documents of one record."""
    dataset = make(folder, tokenized)
    samples = list(islice(dataset, 6))
    want = [list(sample["__record__"]) for sample in samples]
    collate = TensorCollate(fields={"input_ids": Pad()})
    batch = collate(samples)
    assert torch.cat([batch["source_ids"][:, None], batch["record_ids"]], 1).tolist() == want
    assert batch["source_ids"].dtype == batch["record_ids"].dtype == torch.int64
    assert batch["source_ids"].is_contiguous()  # so that a worker sends them as they lie
    assert batch["record_ids"].is_contiguous()
    groups = make(folder, tokenized, GroupByLength(12, lookahead=6))
    for group in islice(groups, 9):
        batch = GroupCollate(collate)([group])
        assert batch["record_ids"].tolist() == [list(sample["__record__"][1:]) for sample in group["samples"]]
    window = {"input_ids": torch.arange(5), "cu_seqlens": torch.tensor([0, 2, 5]), "__record__": (4, 1, 17, 0)}
    packed = next(iter(make(folder, tokenized, PackTokens(16))))
    batch = TensorCollate()([{name: packed[name] for name in (*list(window)[:2], "source_ids", "record_ids")}, window])
    assert batch["record_ids"].tolist() == [*packed["record_ids"].tolist(), [1, 17, 0], [1, 17, 0]]
    assert batch["source_ids"].tolist()[-2:] == [4, 4]


class Rated(Numbers):
    """Two of three records have a weight."""

    def __getitem__(self, index: int) -> dict:
        lacks = {"quality": None} if index % 2 else {}  # as of parquet, or without the field
        return {**super().__getitem__(index), **({"quality": index / 4} if index % 3 else lacks)}


@pytest.mark.parametrize("where", ["source", "mixture"])
def test_weights_of_documents_come_from_a_field_of_their_records(where) -> None:
    """A record that lacks it counts as 1, as do those of other sources; each token has that of its document."""

    def make() -> MergedDataset:
        packer = PackTokens(16, lookahead=5, loss_weights=True)
        fns = {"single_process_fn": tokenized, "process_fn": packer if where == "source" else None}
        rated, plain = Rated("rated", 20, weight_field="quality", **fns), Numbers("plain", 9, **fns)
        return MergedDataset([rated, plain], seed=2, customized_yield_fn=packer if where == "mixture" else None)

    seen = set()
    rows = list(islice(make(), 40))
    for row in rows:
        want = []
        for (source, record, tokens), weight in zip(documents(row), row["document_weights"].tolist(), strict=True):
            is_rated = make().source_names[source] == "rated" and record[1] % 3
            assert weight == (record[1] / 4 if is_rated else 1.0)
            want += [weight] * len(tokens)
            seen.add((source, weight))
        assert row["loss_weight"].dtype == row["document_weights"].dtype == torch.float32
        assert row["loss_weight"].tolist() == want
    assert len(seen) > 5
    torch.set_default_dtype(torch.float64)
    try:
        assert next(iter(make()))["document_weights"].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    batch = TensorCollate()(rows[:2])
    assert batch["document_weights"].tolist() == [weight for row in rows[:2] for weight in row["document_weights"]]
    assert batch["loss_weight"].shape == batch["input_ids"].shape
    assert_exact_resume(make, steps=8)


@pytest.mark.parametrize("value", [-1, 1e400, math.nan, "0.5", True, False])
def test_what_is_no_weight_is_refused(value) -> None:
    """With its record."""
    source = named([{"q": 1.0}, {"q": value}], name="a", percent=1, weight_field="q")
    with pytest.raises(ValueError, match=r"weight_field 'q', got .* at index 1"):
        list(islice(MergedDataset([source]), 2))


@pytest.mark.parametrize("value", [3, ["q"]])
def test_a_weight_field_is_a_name(value) -> None:
    """Of a source, not of a mixture."""
    with pytest.raises(ValueError, match="weight_field"):
        MergedDataset([Numbers("a", 3, weight_field=value)])
    inner = MergedDataset([Numbers("a", 3)], name="inner", percent=1)
    inner.weight_field = "q"
    with pytest.raises(ValueError, match="not of mixtures"):
        MergedDataset([inner])


def test_a_collate_gives_each_token_its_weight() -> None:
    """Of single samples, padded, and of windows; 1 where no source has weights."""
    samples = [
        {"input_ids": torch.arange(length), "__record__": (0, 0, length, 0), "__weight__": weight}
        for length, weight in ((3, 0.5), (1, 2.0))
    ]
    collate = TensorCollate(fields={"input_ids": Pad()}, loss_weights=True)
    batch = collate(samples)
    assert batch["loss_weight"].tolist() == [[0.5] * 3, [2.0] * 3]
    assert batch["document_weights"].tolist() == [0.5, 2.0]
    for sample in samples:
        del sample["__weight__"]
    assert collate(samples)["loss_weight"].tolist() == [[1.0] * 3] * 2
    windows = [
        {
            "input_ids": torch.arange(5),
            "cu_seqlens": torch.tensor([0, 2, 5]),
            "__record__": (0, 0, number, 0),
            "__weight__": number / 2,
        }
        for number in (1, 3)
    ]
    batch = TensorCollate(loss_weights=True, provenance=False)(windows)
    assert batch["loss_weight"].tolist() == [0.5] * 5 + [1.5] * 5
    assert "document_weights" not in batch
    with pytest.raises(ValueError, match="expected samples of a stream"):
        collate([{"input_ids": torch.arange(3)}])


@pytest.mark.parametrize("longer", ["split", "truncate"])
def test_rows_keep_the_weights_that_samples_bring(longer) -> None:
    """One for each token, as windows of a store bring them; others have that of their record."""
    ids = [torch.arange(length) + 10 * length for length in (9, 2, 3, 5)]
    own = [{"input_ids": each, "loss_weight": each / 2} for each in ids[:2]]
    rated = [{"input_ids": each, "quality": len(each)} for each in ids[2:]]
    sources = [named(own, name="own", percent=1), named(rated, name="rated", percent=1, weight_field="quality")]
    packer = PackTokens(6, longer=longer, loss_weights=True)
    found = {}
    for row in MergedDataset(sources, seed=1, cyclic=False, customized_yield_fn=packer):
        found |= dict(zip(row["input_ids"].tolist(), row["loss_weight"].tolist(), strict=True))
    tokens = [token for each in ids for token in (each if longer == "split" else each[:6]).tolist()]
    assert found == {token: token // 10 if token // 10 in (3, 5) else token / 2 for token in tokens}


@pytest.mark.parametrize("given", [np.ones(2, np.float32), np.ones(1, np.float32), np.float32(0.5)])
def test_a_packed_sample_has_a_loss_weight_for_each_token_or_is_named(given):
    """What cannot be written to is taken as well, and None is none."""
    own = np.array([0.5, 0.25], np.float32)
    own.flags.writeable = False
    samples = [{"input_ids": np.arange(2), "loss_weight": weights} for weights in (own, None)]
    (row,) = PackTokens(9, loss_weights=True)(samples)
    assert row["loss_weight"].tolist() == [0.5, 0.25, 1, 1]
    wrong = {"input_ids": np.arange(3), "loss_weight": given, "__url__": "a.tar", "__key__": "7"}
    with pytest.raises(ValueError, match=r"'loss_weight' of a\.tar, key '7': expected 3 values, got "):
        list(PackTokens(9, loss_weights=True)([wrong]))


def test_batches_keep_the_weights_that_samples_bring() -> None:
    """Beside samples, and rows, that have those of their documents."""
    sample = {"input_ids": torch.arange(4), "__record__": (0, 0, 1, 0), "__weight__": 3.0}
    window = {**sample, "loss_weight": torch.tensor([0.5, 0.5, 2, 2])}
    batch = TensorCollate(loss_weights=True)([window, sample])
    assert batch["loss_weight"].tolist() == [[0.5, 0.5, 2, 2], [3] * 4]
    bounds = {"cu_seqlens": torch.tensor([0, 2, 4])}
    row = {**sample, **bounds, "source_ids": torch.tensor([1, 1]), "document_weights": torch.tensor([0.0, 7.0])}
    row["record_ids"] = torch.tensor([[0, 0, 0], [0, 1, 0]])
    marked = {**window, **bounds, "document_weights": torch.tensor([0.5, 2.0])}
    batch = TensorCollate(loss_weights=True)([row, marked])
    assert batch["loss_weight"].tolist() == [0, 0, 7, 7, 0.5, 0.5, 2, 2]
    assert batch["document_weights"].tolist() == [0, 7, 0.5, 2]
    assert batch["source_ids"].tolist() == [1, 1, 0, 0]


def test_provenance_can_be_left_out(folder) -> None:
    """Of batches; where some samples do not say what they are of, no batch does."""
    packed = list(islice(make(folder, tokenized, PackTokens(16)), 3))
    samples = [{name: sample[name] for name in sample if name != "position_ids"} for sample in packed]
    assert {"source_ids", "record_ids"} <= TensorCollate()(samples).keys()
    assert TensorCollate(provenance=False)(samples).keys().isdisjoint({"source_ids", "record_ids"})
    assert TensorCollate()([{"a": 1}, {"a": 2}]).keys() == {"a"}
    with pytest.raises(ValueError, match="provenance=False"):
        TensorCollate(fields={"record_ids": "drop"})


def test_workers_send_it_along(folder) -> None:
    """In a list of samples, and in tensors."""
    for collate in (mixed_collate, TensorCollate(fields={"input_ids": Pad()})):
        batches = [list(islice(StreamLoader(make(folder, tokenized), 4, n, collate), 8)) for n in (0, 1)]
        assert str(batches[0]) == str(batches[1]).replace("'__workerid__': 1", "'__workerid__': 0")


def test_numbers_stay_where_a_source_is_left_out(folder) -> None:
    """Its percent may be 0 in one run and not in another."""
    dataset = make(folder, tokenized)
    dataset.datasets[0].datasets[0].percent = dataset.datasets[1].percent = 0
    assert dataset.source_names == NAMES
    for sample in islice(dataset, 9):
        assert NAMES[sample["__record__"][0]] == sample["__datasetname__"]
    with pytest.raises(ValueError, match=r"one of inner\.rows, inner\.zipped, tars"):
        dataset.describe_record("map", (0, 0, 0))


def test_records_that_are_not_there_are_refused(folder) -> None:
    """With what there is."""
    dataset = make(folder)
    with pytest.raises(ValueError, match=r"one of inner.lines, .*, or their numbers, got 'lines'"):
        dataset.describe_record("lines", (0, 0, 0))
    for number in (-1, 5):
        with pytest.raises(ValueError, match=f"got {number}"):
            dataset.describe_record(number, (0, 0, 0))
    for name in NAMES:
        for number in (-1, 20, 1 << 50):
            with pytest.raises(ValueError, match=f"'{name}': expected the number of one of its records, got {number}"):
                dataset.describe_record(name, (0, number, 0))
    own = MergedDataset([named(iter_numbers(), name="own", percent=1)])
    with pytest.raises(SourceError, match="another library's iterable"):
        own.describe_record("own", next(iter(own))["__record__"][1:])


def iter_numbers() -> torch.utils.data.IterableDataset:
    """An iterable of another library."""

    class Iterable(torch.utils.data.IterableDataset):
        lanes = "stride"

        def __iter__(self) -> Iterator[dict]:
            return ({"value": number} for number in range(9))

    return Iterable()
