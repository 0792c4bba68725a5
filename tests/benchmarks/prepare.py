"""Preparing: pretraining text beside the tokenizer alone, two workers beside one, a faster tokenizer, memory."""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple
from unittest.mock import patch

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from streamdata.prepare.config import load_config
from streamdata.prepare.encode import TextTokenizer
from streamdata.prepare.inputs import Task, plan_tasks
from streamdata.prepare.run_directory import RunDirectory
from streamdata.prepare.worker import RunSpec, Worker, run_local
from streamdata.text.tokenizer import load_tokenizer
from tests.benchmarks.data import cached
from tests.benchmarks.measure import Row, Scale, by_turns

VOCABULARY, END = 32_000, "<|end|>"
CONFIG = {"train_type": "seq", "sections": [{"field": "text", "action": "train"}], "end_of_document": True}
DOCUMENT = 8000  # characters
BATCH = 128  # documents, about a megabyte, as a worker reads them
PEAK = """
import json, sys
from streamdata.prepare.inputs import plan_tasks
from streamdata.prepare.worker import RunSpec, Worker
from tests.memory import peak
job, inputs = json.loads(sys.argv[1]), sys.argv[2]
worker = Worker(RunSpec(**job))
for task in plan_tasks([inputs], 1 << 40):
    counts = worker.do(task, lambda _: None)["counts"]
print(peak(), counts["tokens"])
"""


def corpus(directory: Path, kilobytes: int) -> Path:
    """`texts.jsonl`, sources of the standard library in pieces of some KB, and `tokenizer`, trained on them."""
    return cached(directory, f"prepare-{kilobytes}", lambda place: _write_corpus(place, kilobytes))


def _write_corpus(place: Path, kilobytes: int) -> None:
    texts: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts and size < kilobytes * 1000:
            text = path.read_text(encoding="utf-8", errors="ignore")
            texts += [text[begin : begin + DOCUMENT] for begin in range(0, len(text), DOCUMENT)]
            size += len(text)
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(place / "tokenizer")


class Spent(NamedTuple):
    """Time in s: of the processor, and as it passed, which is more where the disk or others were waited for."""

    cpu: float
    wall: float


def _spent(work: Callable[[], None]) -> Spent:
    cpu, wall = process_time(), perf_counter()
    work()
    return Spent(process_time() - cpu, perf_counter() - wall)


class Prepared:
    """Runs of the same corpus, each into a directory of its own."""

    def __init__(self, place: Path, root: Path) -> None:
        self._place, self._root, self._number = place, root, 0
        self.tokenizer = load_tokenizer(str(place / "tokenizer"))
        self.texts = [json.loads(line)["text"] for line in (place / "texts.jsonl").read_text().splitlines()]
        self.size_bytes = (place / "texts.jsonl").stat().st_size

    def job(self, **options: object) -> RunSpec:
        """What the tasks of one run have in common."""
        self._number += 1
        directory = RunDirectory(self._root / str(self._number))
        directory.work.mkdir(parents=True)
        directory.tasks.mkdir()
        TextTokenizer.save(self.tokenizer, directory.tokenizer)
        config = load_config({**CONFIG, **options}).model_dump_json()
        return RunSpec(config, str(self._place / "tokenizer"), str(directory.path), os.getcwd())

    def tasks(self, count: int) -> list[Task]:
        """So many tasks of one size; by default a task has more bytes than all of these texts."""
        return plan_tasks([str(self._place / "texts.jsonl")], self.size_bytes // count + 1)

    def seconds(self, workers: int, **options: object) -> float:
        """How long the whole corpus takes at the pace since the workers told of their first batch."""
        told: list[tuple[float, int]] = []
        done = 0

        def report(counts: Counter[str]) -> None:
            nonlocal done
            done += counts["bytes"]
            told.append((perf_counter(), done))

        run_local(self.job(**options), self.tasks(workers), workers, report, lambda _: None)
        began, before = told[workers - 1]
        return (perf_counter() - began) * self.size_bytes / max(done - before, 1)

    def beside_the_tokenizer(self, turns: int) -> list[tuple[Spent, Spent]]:
        """What a worker takes for all texts, and right after it `encode_batch_fast` for them in memory.

        A first turn, which fills the tokenizers' caches, does not count.
        """
        worker, tasks = Worker(self.job()), self.tasks(1)
        tokenizer = TextTokenizer.load(RunDirectory(self.job().output).tokenizer).backend_tokenizer
        tokenizer.encode_special_tokens = True

        def prepare() -> None:
            for task in tasks:
                worker.do(task, lambda _: None)

        def encode() -> None:
            with patch.dict(os.environ, {"TOKENIZERS_PARALLELISM": "false"}):  # as a worker does
                for begin in range(0, len(self.texts), BATCH):
                    tokenizer.encode_batch_fast(self.texts[begin : begin + BATCH], add_special_tokens=False)

        return [(_spent(prepare), _spent(encode)) for _ in range(1 + turns)][1:]

    def peak(self, copies: int) -> tuple[int, int]:
        """The most memory in bytes of a worker that packs one large task, and the task's tokens."""
        path = self._root / "large.jsonl"
        text = (self._place / "texts.jsonl").read_bytes()
        with path.open("wb") as file:
            for _ in range(copies):
                file.write(text)
        packing = {"packing": "bfd_split", "max_packed_len": 8192, "task_bytes": 1 << 40}
        job = json.dumps(self.job(backend="gigatoken", train_type="sft", **packing)._asdict())
        command = [sys.executable, "-c", PEAK, job, str(path)]
        out = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ}).stdout.split()
        return int(out[0]), int(out[1])


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """All figures of preparing."""
    place = corpus(directory, scale.prepare_kilobytes)
    with tempfile.TemporaryDirectory(dir=directory) as root:
        prepared = Prepared(place, Path(root))
        best = by_turns(
            min(scale.repetitions, 3),
            one=lambda: prepared.seconds(1),
            two=lambda: prepared.seconds(2),
            gigatoken=lambda: prepared.seconds(1, backend="gigatoken"),
        )
        yield _share(prepared, scale.repetitions + 2)
        yield from _gains(best, prepared.size_bytes)
        yield from _memory(prepared, scale)


def _share(prepared: Prepared, turns: int) -> Row:
    pairs = prepared.beside_the_tokenizer(turns)
    share = median(alone.cpu / ours.cpu for ours, alone in pairs)
    passed = median(alone.wall / ours.wall for ours, alone in pairs)
    rates = [
        f"{prepared.size_bytes / median(spent.cpu for spent in work) / 1e6:.2f} MB/s"
        for work in zip(*pairs, strict=True)
    ]
    return Row(
        work=f"prepare text, {VOCABULARY // 1000} k BPE, one worker, JSONL to store",
        reach="≥ 0.92 x encode_batch_fast on the same texts in memory",
        got=f"{share:.2f} x",
        ok=share >= 0.92,
        from_=f"{rates[0]}, encode_batch_fast {rates[1]}; medians of {turns} pairs of turns, of CPU time; "
        f"as the time passed, {passed:.2f} x",
    )


def _gains(best: dict[str, float], size_bytes: int) -> Iterator[Row]:
    rates = {name: f"{size_bytes / seconds / 1e6:.1f} MB/s" for name, seconds in best.items()}
    gain, faster = best["one"] / best["two"], best["one"] / best["gigatoken"]
    yield Row(
        work="the same, two workers",
        reach="≥ 1.8 x one",
        got=f"{gain:.2f} x",
        ok=gain >= 1.8,
        from_=f"{rates['two']}; one {rates['one']}; best of three turns, of the pace: without the start of the "
        "processes and the first batches",
    )
    yield Row(
        work="the same, backend gigatoken, one worker",
        reach="the gain",
        got=f"{faster:.1f} x",
        ok=faster > 1,
        from_=f"{rates['gigatoken']}; tokenizers {rates['one']}",
    )


def _memory(prepared: Prepared, scale: Scale) -> Iterator[Row]:
    peak, tokens = prepared.peak(scale.packed_copies)
    size_bytes = prepared.size_bytes * scale.packed_copies
    yield Row(
        work="memory of a worker that packs one large task",
        reach="≤ 1 GB",
        got=f"{peak / 1e9:.2f} GB",
        ok=peak <= 1e9,
        from_=f"{size_bytes / 1e6:,.0f} MB of text, {tokens:,} tokens in one task, bfd_split, mask, positions",
    )
