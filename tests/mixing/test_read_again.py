"""Samples that are read again by their ids: those of the stream, at the cost of one record."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdata import (
    DatasetFactory,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    ShardError,
    SourceError,
    StreamLoader,
    TensorCollate,
    named,
    record_rng,
    to_state,
)
from streamdata.shards.parquet.shards import ParquetShards
from tests.shard_files import write_tars
from tests.sources.own_streams import Counting
from tests.sources.test_part import KINDS as KINDS_WITH_PARTS
from tests.stores.tiny_stores import write
from tests.streams import Numbers, loaded, plain


def rows(at: Path, **given: object) -> ParquetDataset:
    """Thirty rows in groups of seven."""
    at.mkdir(exist_ok=True)
    table = pa.table({"value": range(30), "names": [[{"of": [number]}] for number in range(30)]})
    pq.write_table(table, at / "0.parquet", row_group_size=7)
    return ParquetDataset(str(at), name="s", percent=1, **given)


def tgz(at: Path, **given: object) -> MetaDistributedWebDataset:
    """Tars that can only be read from their start."""
    write_tars(at, [9, 14], sidecars=False)
    for path in at.glob("*.tar"):
        (at / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return MetaDistributedWebDataset(str(at), shuffle_buffer=5, name="s", percent=1, **given)


def zipped(at: Path, **given: object) -> JsonlIterableDataset:
    """Lines that hold lists, compressed."""
    at.mkdir(exist_ok=True)
    for shard in range(2):
        lines = (json.dumps({"names": [shard, number]}) + "\n" for number in range(12))
        (at / f"{shard}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return JsonlIterableDataset(str(at), shuffle_buffer=5, name="s", percent=1, **given)


def piped(at: Path, **given: object) -> MetaDistributedWebDataset:
    """The output of commands."""
    write_tars(at, [9, 14], sidecars=False)
    pipes = [f"pipe:cat {at}/{number:05}.tar" for number in range(2)]
    return MetaDistributedWebDataset(pipes, shuffle_buffer=5, name="s", percent=1, **given)


KINDS = {
    **KINDS_WITH_PARTS,
    "rows": rows,
    "rows of many groups": lambda at, **given: rows(at, max_open_bytes=1, **given),
    "lists in lines": zipped,
    "tar.gz": tgz,
    "pipe": piped,
    "pairs of a store": lambda at, **given: named(
        DatasetFactory.load("dpo", write("h5", at, "dpo", 30), None), name="s", percent=1, **given
    ),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")


def several(record: dict) -> list[dict]:
    """None to two samples, each with a number that is drawn for it; what the record holds is changed."""
    rng = record_rng(record)
    for value in record.values():
        if isinstance(value, list):
            value.append("changed")
    return [{**record, "drawn": rng.random(), "copy": number} for number in range(rng.integers(3))]


def mixed(source: object, **settings: object) -> MergedDataset:
    """The source two mixtures down, and others beside it."""
    inner = MergedDataset([source, Numbers("a", 5, 0.2)], name="inner", percent=4, seed=5)
    return MergedDataset([inner, Numbers("z", 7, 1, single_process_fn=several)], seed=3, **settings)


def same(sample: dict) -> dict:
    """What a sample that is read again shares with the stream's."""
    return {name: value for name, value in plain(sample).items() if name not in ("__dprank__", "__workerid__")}


def ids(sample: dict, *epoch_pass: int) -> tuple:
    """Of the sample: what it is read by."""
    source, *record_id = sample["__record__"]
    return source, record_id, *epoch_pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [None, several])
def test_samples_read_again_are_those_of_the_stream(kind, function, tmp_path) -> None:
    """Of several epochs and passes, of all outputs and of a part, in a process in which no iteration began."""
    source = KINDS[kind](tmp_path / "s", holdout=0.3, part="train")
    if function is not None:
        source.single_process_fn = function
    make = lambda: mixed(source)  # noqa: E731
    dataset, wanted, want = make(), [], []
    for epoch_pass in (2, 0):
        stream = make()
        stream.set_epoch(epoch_pass)
        samples = list(islice(stream, 80))
        wanted += [ids(sample, epoch_pass) for sample in samples]
        want += map(same, samples)
        dataset.set_epoch(epoch_pass)
        assert list(map(same, (dataset.read(*ids(sample)) for sample in samples[:3]))) == want[-80:-77]
    assert max(record_id[0] for number, record_id, _ in wanted if dataset.source_names[number] == "inner.s") > 0
    assert list(map(same, dataset.read_many(reversed(wanted)))) == want[::-1]
    again = dataset.read_many(wanted[:2] * 2)
    assert list(map(same, again)) == want[:2] * 2
    assert {(sample["__dprank__"], sample["__workerid__"]) for sample in again} == {(0, 0)}
    assert not any("__cursor__" in sample for sample in again)


def test_records_of_a_range_of_parts_are_read_again() -> None:
    """And none of another part."""
    for by in ("tail", "seed"):
        source = Numbers("s", 90, parts="6,3,1", part="valid", parts_by=by)
        dataset = MergedDataset([source])
        samples = list(islice(dataset, 27))
        assert [sample["value"] for sample in dataset.read_many(map(ids, samples))] == [s["value"] for s in samples]
        other = next(number for number in range(90) if number not in {sample["value"] for sample in samples})
        with pytest.raises(ValueError, match="source 's': expected the number of one of its records"):
            dataset.read("s", (0, other, 0))


@pytest.mark.parametrize("kind", ["jsonl", "tar", "compressed", "rows", "map-style"])
def test_records_of_the_other_part_are_refused(kind, tmp_path) -> None:
    """What is held out is not trained on by way of its number."""
    parts = {part: KINDS[kind](tmp_path / part, holdout=0.4, part=part) for part in ("train", "valid")}
    train, valid = (MergedDataset([source]) for source in parts.values())
    held_out = ids(next(iter(valid)))
    with pytest.raises(ValueError, match=r"'s': expected the number of one of its records of the part train"):
        train.read(*held_out)


def test_reading_again_costs_one_record(tmp_path, monkeypatch) -> None:
    """Of a map-style dataset and of shards with an index; a row group of parquet is decoded once."""
    read, sizes, decoded = [], [], []

    class Counted(Numbers):
        def __getitem__(self, index: int) -> dict:
            read.append(index)
            return super().__getitem__(index)

    tars, lines = KINDS["tar"](tmp_path / "tars"), KINDS["jsonl"](tmp_path / "lines")
    group_bytes = int(rows(tmp_path / "rows").source.shards.sizes.max())
    parquet = rows(tmp_path / "rows", max_open_bytes=3 * group_bytes)  # of which four have more
    tars.name, lines.name, parquet.name = "tars", "lines", "rows"
    dataset = MergedDataset([Counted("map", 50), tars, lines, parquet])
    for source in (tars, lines):
        whole = source.source.shards.window
        monkeypatch.setattr(
            source.source.shards, "window", lambda *runs, of=whole: sizes.append(int(runs[2].sum())) or of(*runs)
        )
    decode = ParquetShards._decode
    monkeypatch.setattr(ParquetShards, "_decode", lambda self, *run: decoded.append(run[0].shard) or decode(self, *run))
    for source, number in (("map", 7), ("tars", 20), ("lines", 50), ("rows", 16)):
        dataset.read(source, (0, number, 0))
    assert (read, sizes, decoded) == ([7], [1, 1], [2])
    decoded.clear()
    dataset.read_many([("rows", (0, number, 0)) for number in (20, 3, 16, 6, 0, 15)])
    assert sorted(decoded) == [0, 2]


def test_shards_without_an_index_are_read_once_and_not_beyond(tmp_path, monkeypatch) -> None:
    """However many samples are asked for, of whichever epochs and passes."""
    source = zipped(tmp_path / "s")
    dataset, begun, taken = MergedDataset([source]), [], []
    stream = source.source.shards.stream

    def counted(shard: int) -> object:
        begun.append(shard)
        for record in stream(shard):
            taken.append((shard, record["names"][1]))
            yield record

    monkeypatch.setattr(source.source.shards, "stream", counted)
    numbers = [9, (1 << 40) + 4, 2, 9, 5, (1 << 40) + 1]
    got = dataset.read_many([("s", (place % 3, number, 0), place) for place, number in enumerate(numbers)])
    assert [sample["names"] for sample in got] == [[0, 9], [1, 4], [0, 2], [0, 9], [0, 5], [1, 1]]
    assert begun == [0, 1]
    assert taken == [(0, number) for number in range(10)] + [(1, number) for number in range(5)]


def test_an_iteration_under_way_is_not_changed(tmp_path) -> None:
    """Nor are the states that its samples carry."""

    def make() -> MergedDataset:
        sources = [KINDS[kind](tmp_path / kind) for kind in ("tar", "compressed", "rows of many groups", "copies")]
        for kind, source in zip("abcd", sources, strict=True):
            source.name, source.single_process_fn = kind, several
        return MergedDataset(sources, seed=2)

    want = [(plain(sample), to_state([sample])) for sample in islice(make(), 60)]
    dataset, got, states = make(), [], []
    for sample in islice(dataset, 60):
        got.append(plain(sample))
        states.append(to_state([sample]))
        assert same(dataset.read(*ids(sample))) == same(sample)
    assert [sample for sample, _ in want] == got
    assert [state for _, state in want] == states


def test_the_pass_is_by_default_the_one_under_way() -> None:
    """That of `set_epoch`, else the one in which passes count up, or at which states stand; also with workers."""

    def make() -> MergedDataset:
        return MergedDataset([Numbers("s", 6, single_process_fn=drawn)], cyclic=False)

    def drawn(record: dict) -> dict:
        return {**record, "drawn": record_rng(record).random()}

    dataset, states = make(), {}
    for _ in range(2):
        for (sample,) in loaded(dataset, 2):
            assert same(dataset.read(*ids(sample))) == same(sample)
            states |= to_state([sample])
            if sample["__record__"][1:] != (0, 3, 0):  # it is drawn otherwise in another pass
                continue
            assert same(dataset.read(*ids(sample), 7)) != same(sample)
    late = make()
    late.set_dataloader_states(states)
    assert late.next_pass(2) == dataset.next_pass(2) == 2
    assert late.read(0, (0, 3, 0)) == dataset.read(0, (0, 3, 0)) == make().read(0, (0, 3, 0), 2)
    dataset.set_epoch(5)
    assert dataset.read(0, (0, 3, 0)) == make().read(0, (0, 3, 0), 5)


def test_what_is_given_may_be_rows_of_a_batch() -> None:
    """Tensors, as `source_ids` and `record_ids` are."""
    dataset = MergedDataset([Numbers("a", 5), Numbers("b", 5)])
    batch = next(iter(StreamLoader(dataset, 8, collate=TensorCollate())))
    pairs = zip(batch["source_ids"], batch["record_ids"], strict=True)
    assert [sample["value"] for sample in dataset.read_many(pairs)] == batch["value"].tolist()


def test_weights_and_sources_that_are_left_out_are_as_in_the_stream() -> None:
    """A source whose percent became 0 can still be read: prompts of it may be in flight."""
    rated = Numbers("rated", 5, weight_field="value")
    dataset = MergedDataset([rated, Numbers("plain", 5)])
    samples = list(islice(dataset, 8))
    want = [same(sample) for sample in samples]
    assert {sample["__weight__"] for sample in want} == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert [same(sample) for sample in dataset.read_many(map(ids, samples))] == want
    dataset.set_weights({"rated": 0})
    rest = [(sample, one) for sample, one in zip(samples, want, strict=True) if sample["__datasetname__"] == "rated"]
    assert [same(dataset.read(*ids(sample))) for sample, _ in rest] == [one for _, one in rest]
    assert "__weight__" not in dataset.read("plain", (0, 1, 0))


@pytest.mark.parametrize("where", ["the source", "its mixture", "the top"])
def test_what_a_stream_function_makes_is_refused(where) -> None:
    """Other sources are read."""
    fns = {name: {"customized_yield_fn": iter} if where == name else {} for name in ("its mixture", "the top")}
    source = Numbers("s", 5, **({"process_fn": iter} if where == "the source" else {}))
    inner = MergedDataset([source], name="inner", percent=1, **fns["its mixture"])
    dataset = MergedDataset([inner, Numbers("inn", 5)], **fns["the top"])
    kind = "process_fn of 'inner.s'" if where == "the source" else "customized_yield_fn of "
    with pytest.raises(SourceError, match=f"read: source 'inner.s': .*{kind}.*depends on the records"):
        dataset.read("inner.s", (0, 1, 0))
    if where != "the top":
        assert dataset.read("inn", (0, 1, 0))["value"] == 1


def test_iterables_of_other_libraries_are_refused() -> None:
    """Nobody can look up their records."""
    with pytest.raises(SourceError, match=r"read: source 'own': .*another library's iterable"):
        MergedDataset([Counting()]).read("own", (0, 1, 0))


@pytest.mark.parametrize("kind", ["map-style", "jsonl", "compressed", "rows", "tar"])
def test_records_that_are_not_there_are_refused(kind, tmp_path) -> None:
    """In any kind of source; nothing else is."""
    dataset = MergedDataset([KINDS[kind](tmp_path / "s")])
    for number in (-1, 57, 1 << 39, 5 << 40, 1 << 62, 1 << 70):
        with pytest.raises(ValueError, match=f"read: source 's': .* one of its records, got {number}"):
            dataset.read_many([("s", (0, 0, 0)), ("s", (0, number, 0))])
    assert dataset.read("s", (0, 0, 0))["__record__"] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("t", (0, 0, 0)), r"one of s, or their numbers, got 't'"),
        ((1, (0, 0, 0)), r"or their numbers, got 1"),
        ((-1, (0, 0, 0)), r"or their numbers, got -1"),
        ((0.0, (0, 0, 0)), r"or their numbers, got 0\.0"),
        (("s", (0, 0)), r"three integers \(epoch, record, output\).*got \('s', \(0, 0\)"),
        (("s", (0, 0.0, 0)), "three integers"),
        (("s", 0), "three integers"),
        (("s", "000"), "three integers"),
        (("s",), "three integers"),
        (("s", (0, 0, 0), 0, 0), "three integers"),
        (("s", (-1, 0, 0)), "source 's': expected an epoch from 0 to 1, got -1"),
        (("s", (2, 0, 0)), "source 's': expected an epoch from 0 to 1, got 2"),
        (("s", (0, 0, 0), -1), "read, epoch_pass: expected an int >= 0"),
        (("s", (0, 0, 0), True), "read, epoch_pass: expected an int >= 0"),
        (("s", (0, 0, 1)), "one of the 1 samples of index 0, got 1"),
        (("s", (0, 0, -1)), "one of the 1 samples of index 0, got -1"),
        (("s", (0, 3, 0)), "one of the 0 samples of index 3, got 0"),
        (("s", (0, 4, 0)), "index 4 is left out by `skip`"),
    ],
)
def test_what_is_no_sample_is_refused(given, message) -> None:
    """With what is expected."""
    source = Numbers("s", 5, max_epochs=2, single_process_fn=lambda record: None if record["value"] == 3 else record)
    dataset = MergedDataset([source], skip=[{"source": "s", "index": 4}])
    with pytest.raises(ValueError, match=message):
        dataset.read_many([("s", (1, 1, 0)), given])


def test_errors_of_records_have_their_place(tmp_path) -> None:
    """Of a function, of a dataset and of a damaged line, also where `max_bad` forgives them: they gave no sample."""
    fails = Numbers("fails", 3, max_bad=9, single_process_fn=lambda record: 1 / record["value"])
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    damaged = JsonlIterableDataset(str(lines), name="damaged", percent=1)
    lost = Numbers("lost", 3)
    dataset = MergedDataset([fails, named([1, None], name="none", percent=1), damaged, lost])
    lost.__class__ = type("Lost", (Numbers,), {"__getitem__": lambda self, index: [][index]})
    with pytest.raises(IndexError, match="list index") as caught:
        dataset.read("lost", (0, 2, 0))
    assert "source 'lost': __getitem__ failed at index 2" in caught.value.__notes__[0]
    with pytest.raises(ZeroDivisionError) as caught:
        dataset.read("fails", (0, 0, 0))
    assert "source 'fails': single_process_fn failed at index 0" in caught.value.__notes__[0]
    with pytest.raises(SourceError, match="expected a record, got None"):
        dataset.read("none", (0, 1, 0))
    with pytest.raises(ShardError, match=r"a\.jsonl:2") as damage:
        dataset.read("damaged", (0, 1, 0))
    assert "source 'damaged': reading failed" in damage.value.__notes__[0]
    assert dataset.read("damaged", (0, 2, 0))["a"] == 3


def test_a_finite_copy_reads_its_own_samples() -> None:
    """Whose seeds are those of an order that is not shuffled, in the same pass."""
    once = MergedDataset([Numbers("s", 9, max_epochs=3, single_process_fn=several)]).finite()
    samples = list(once)
    assert list(map(same, once.read_many(ids(sample, 0) for sample in samples))) == list(map(same, samples))
