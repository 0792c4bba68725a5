import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamdata.prepare import PrepareError, load_config, output
from streamdata.prepare.encode import TextTokenizer
from streamdata.prepare.inputs import Task, plan_tasks
from streamdata.prepare.output import store_keys
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import RunSpec, Worker
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.factory import open_store
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import PRETRAIN, documents, run, tree, write

DOMAINS = PRETRAIN | {"domain_key": "kind"}
SFT = {"train_type": "sft", "sections": [{"field": "text", "action": "train"}]}


def of_kinds(count: int, kinds: int) -> list[dict]:
    """Documents of several kinds in turns."""
    return [record | {"kind": f"k{number % kinds}"} for number, record in enumerate(documents(count))]


def decoded(tokenizer: str, store: Path) -> list[str]:
    """The texts of a store of whole documents."""
    found = open_store(store)
    texts = [load_tokenizer(tokenizer).decode(found.fetch_record(i, "sequence")) for i in range(found.num_records)]
    return [text.removesuffix("<|end|>") for text in texts]


def test_each_domain_is_a_store_of_its_own(tokenizer: str, tmp_path: Path) -> None:
    """Of its records, in their order; all of them together are a store too."""
    records = of_kinds(30, 3)
    path = write(tmp_path / "a.jsonl", records)
    run(DOMAINS | {"task_bytes": 5000}, tokenizer, path, tmp_path / "out")
    data = tmp_path / "out" / "data"
    for kind in ("k0", "k1", "k2"):
        assert decoded(tokenizer, data / kind) == [record["text"] for record in records if record["kind"] == kind]
    assert open_store(data).num_records == 30


@pytest.mark.parametrize("store_format", ["bin", "h5", "megatron"])
def test_a_domain_may_be_named_as_the_files_of_a_store(tokenizer: str, tmp_path: Path, store_format: str) -> None:
    """Or lead elsewhere by its name; each is found by whoever reads the whole."""
    names = ["shard_0000", "data_0000", "data_0000.h5", "meta.json", "task_00000", "..", ".", "a/b", "\u00e4", " "]
    path = write(tmp_path / "a.jsonl", [{"text": "x", "kind": name} for name in names])
    run(DOMAINS | {"format": store_format}, tokenizer, path, tmp_path / "out")
    assert len(list((tmp_path / "out" / "data").iterdir())) == len(names)
    assert open_store(tmp_path / "out").num_records == len(names)


def test_many_domains_hold_no_file_open_and_no_more_tokens_than_one(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that hold the most are packed first."""
    monkeypatch.setattr(output, "MAX_HELD", 2000)
    plan, planned = output.plan_simple, [0]

    def plan_and_count(lengths: object, row: int) -> object:
        planned.append(lengths.sum())
        return plan(lengths, row)

    monkeypatch.setitem(output._PLANS, "simple", plan_and_count)
    seen: list[tuple[int, int]] = []

    def look(_: Counter[str]) -> None:
        seen.append((sum(planned), len(os.listdir("/proc/self/fd"))))

    path = write(tmp_path / "a.jsonl", of_kinds(120, 40))
    packing = {"packing": "simple", "max_packed_len": 64}
    with worker(DOMAINS | packing, tokenizer, path, tmp_path) as (made, (task,)):
        look(Counter())
        tokens = made.do(task, look)["counts"]["tokens"]
    (_, before), (written, during) = seen
    assert during < before + 5
    assert tokens - 2000 < written < tokens == sum(planned)


def test_too_many_domains_are_an_error(tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the field."""
    monkeypatch.setattr(output, "MAX_DOMAINS", 2)
    path = write(tmp_path / "a.jsonl", of_kinds(9, 3))
    with pytest.raises(PrepareError, match="domain_key 'kind': expected at most 2 domains in a task, got 'k2' too"):
        run(DOMAINS, tokenizer, path, tmp_path / "out")


def test_shards_end_with_their_tokens(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """At `max_tokens_per_shard`, or after the one record that is longer."""
    run(PRETRAIN | {"max_tokens_per_shard": 1000}, tokenizer, texts, tmp_path / "out")
    metas = [json.loads(path.read_text()) for path in (tmp_path / "out" / "data").rglob("meta.json")]
    assert len(metas) > 10
    assert all(meta["num_tokens"] <= 1000 or meta["num_records"] == 1 for meta in metas)


def test_windows_never_cross_packed_rows(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """Though their length does not divide the rows'."""
    packing = {"packing": "bfd_split", "max_packed_len": 64, "position_ids": "continuous"}
    manifest = run(SFT | packing, tokenizer, texts, tmp_path / "out")
    dataset = DatasetFactory.load("sft", tmp_path / "out", 48)
    assert len(dataset) >= manifest["counts"]["rows"]
    for sample in dataset:
        positions = sample["position_ids"].tolist()
        assert positions == list(range(positions[0], positions[0] + len(positions)))


def test_packed_pretraining_trains_on_no_padding(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """Windows run over all rows, as over documents that were not packed; the same tokens are trained."""
    packed = PRETRAIN | {"packing": "bfd", "max_packed_len": 512, "max_seq_len": 512, "too_long": "truncate_right"}
    run(packed, tokenizer, texts, tmp_path / "packed")
    run(packed | {"packing": "none", "max_packed_len": None}, tokenizer, texts, tmp_path / "plain")
    found, expected = (DatasetFactory.load("seq", tmp_path / name, 1) for name in ("packed", "plain"))
    assert len(found) == len(expected)
    stores = (sorted(decoded(tokenizer, tmp_path / name)) for name in ("packed", "plain"))
    assert next(stores) == next(stores)
    assert load_tokenizer(tokenizer).pad_token_id not in {int(sample["target_ids"]) for sample in found}


@pytest.mark.parametrize(
    ("options", "vocabulary", "dtypes"),
    [
        ({}, 65_536, ["uint16", "bool", "uint32"]),
        ({"max_seq_len": 65_536}, 65_537, ["uint32", "bool", "uint16"]),
        ({"packing": "simple", "max_packed_len": 65_537}, 1 << 32, ["uint32", "bool", "uint32"]),
    ],
)
def test_dtypes_hold_every_id_and_position(options: dict, vocabulary: int, dtypes: list[str]) -> None:
    """By the vocabulary, and by the longest sequence."""
    assert list(store_keys(load_config(SFT | options), vocabulary).values()) == dtypes


@contextmanager
def worker(config: dict, tokenizer: str, path: str, folder: Path) -> Iterator[tuple[Worker, list[Task]]]:
    """A worker by itself, and its tasks."""
    directory = RunDirectory(folder / "out")
    directory.work.mkdir(parents=True)
    directory.tasks.mkdir()
    TextTokenizer.save(load_tokenizer(tokenizer), directory.tokenizer)
    loaded = load_config(config)
    job = RunSpec(loaded.model_dump_json(), tokenizer, str(directory.path), str(folder))
    yield Worker(job), plan_tasks([path], loaded.task_bytes)


class KilledError(BaseException):
    """Where the process would be killed."""


@pytest.mark.parametrize("place", ["publish_written", "sha256"])
def test_two_at_one_task_lose_nothing_wherever_one_is_killed(
    tokenizer: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """On a cluster one may be taken for dead, while it is slow; what the other published stays."""
    with worker(DOMAINS | {"domain_key": "id"}, tokenizer, texts, tmp_path) as (made, (task,)):
        marker = made.do(task, lambda _: None)
        before = tree(tmp_path)
        monkeypatch.setattr(f"streamdata.prepare.output.{place}", killed)
        with pytest.raises(KilledError):
            made.do(task, lambda _: None)
        monkeypatch.undo()
        assert tree(tmp_path) == before
        assert made.do(task, lambda _: None) == marker
        assert tree(tmp_path) == before


def killed(*_: object) -> None:
    raise KilledError


def test_who_is_late_does_not_begin_a_run_that_has_ended(tokenizer: str, texts: str, tmp_path: Path) -> None:
    """Its directory would look like one that is under way."""
    with worker(PRETRAIN, tokenizer, texts, tmp_path) as (made, (task,)), pytest.raises(FileNotFoundError):
        made.do(task, lambda _: shutil.rmtree(RunDirectory(tmp_path / "out").work))
    assert not RunDirectory(tmp_path / "out").work.exists()
