import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch

from streamdata import MergedDataset, StreamLoader, TensorCollate
from streamdata.delivery.losses import documents_of
from streamdata.prepare import PrepareError, load_config, output
from streamdata.prepare.encode import TextTokenizer
from streamdata.prepare.finished_runs import verify
from streamdata.prepare.inputs import Task, plan_tasks
from streamdata.prepare.output import store_keys
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import RunSpec, Worker
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.factory import open_store
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import PRETRAIN, documents, run, tree, write

DOMAINS = PRETRAIN | {"domain_key": "kind"}
SEQ = {"train_type": "seq", "sections": [{"field": "text", "action": "train"}]}
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


LETTERS = "abcdefghijklm"
RATED = [{"text": letter * (3 + 5 * number % 11), "q": {"w": number / 4}} for number, letter in enumerate(LETTERS)]
RATED[3]["q"]["w"], RATED[5] = None, {"text": RATED[5]["text"]}
WEIGHTS = {letter: 1.0 if number in (3, 5) else number / 4 for number, letter in enumerate(LETTERS)}


@pytest.mark.parametrize("store_format", ["bin", "h5"])
@pytest.mark.parametrize(
    ("config", "documents"),
    [
        (SEQ, True), (SEQ, False), (SEQ | {"packing": "simple", "max_packed_len": 16}, True),
        (SFT | {"packing": "bfd", "max_packed_len": 32, "max_seq_len": 16}, True),
        (SFT | {"packing": "bfd_split", "max_packed_len": 16}, False),
    ],
)  # fmt: skip
def test_weights_of_documents_are_those_of_their_tokens(
    tokenizer: str, tmp_path: Path, store_format: str, config: dict, documents: bool
) -> None:
    """In windows across documents, shards and rows; 1 where a record has none, and in stores without any."""
    path = write(tmp_path / "rated.jsonl", RATED)
    config = config | {"format": store_format, "task_bytes": 200, "max_tokens_per_shard": 40}
    for name, more in (("rated", {"weight_field": "q.w"}), ("plain", {})):
        run(config | more, tokenizer, path, tmp_path / name)
    assert verify(tmp_path / "rated") == []
    load = partial(DatasetFactory.load, config["train_type"], window_size=8, stride=3, documents=documents)
    tokens = load_tokenizer(tokenizer)
    letters = {tokens.convert_tokens_to_ids(letter): letter for letter in LETTERS}

    def weights(window: torch.Tensor) -> list[float]:
        return [WEIGHTS[letters[token]] if token in letters else 0 for token in window.tolist()]  # padding has 0

    rated, plain = load(tmp_path / "rated", name="rated", percent=1), load(tmp_path / "plain", name="plain", percent=1)
    seen = set()
    for index, sample in enumerate(rated.__getitems__(range(len(rated)))):
        assert sample["loss_weight"].dtype == torch.float32
        assert sample["loss_weight"].tolist() == rated[index]["loss_weight"].tolist() == weights(sample["input_ids"])
        seen |= set(sample["loss_weight"].tolist())
        if documents:
            firsts = sample["input_ids"][sample["cu_seqlens"][:-1].long()]
            assert sample["document_weights"].tolist() == weights(firsts)
    assert seen - {0.0} >= set(WEIGHTS.values()) - {0.0}
    mixture = MergedDataset([rated, plain], seed=1)
    for batch in islice(StreamLoader(mixture, 4, collate=TensorCollate(loss_weights=True)), 9):
        windows = zip(batch["input_ids"].view(4, 8), batch["loss_weight"].view(4, 8), strict=True)
        of = batch["source_ids"][documents_of(batch["input_ids"], batch)].view(4, 8)[:, 0]
        for (window, found), source in zip(windows, of.tolist(), strict=True):
            assert found.tolist() == (weights(window) if mixture.source_names[source] == "rated" else [1.0] * 8)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e39, "0.5", True, []])
def test_what_is_no_weight_is_refused(tokenizer: str, tmp_path: Path, value: object) -> None:
    """With its record, unless some may be bad."""
    path = write(tmp_path / "a.jsonl", [{"text": "a", "q": 2}, {"text": "b", "q": value}])
    config = SEQ | {"weight_field": "q"}
    with pytest.raises(PrepareError, match=r"a\.jsonl:2: q: wrong type: expected a number of float32 from 0 on, got"):
        run(config, tokenizer, path, tmp_path / "out")
    assert run(config | {"max_bad": 1}, tokenizer, path, tmp_path / "other")["bad"] == {"wrong type": 1}
    assert open_store(tmp_path / "other").array("document_weights", 0, 1).tolist() == [2.0]
