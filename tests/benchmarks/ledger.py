"""What a ledger adds to a stream, how large and slow its states are, and how many prompts a server gives."""

import json
import multiprocessing
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time

from streamdata import LedgerClient, MergedDataset, PromptLedger
from tests.benchmarks.measure import Row, Scale
from tests.streams import Numbers

_AT_ONCE, _CLIENTS = 16, 8
_TEXT = "x" * 1000


class Texts(Numbers):
    """Prompts of 1 KB."""

    def __getitem__(self, index: int) -> dict:
        return {"value": index, "prompt": _TEXT}


def rows(directory: Path, scale: Scale) -> Iterator[Row]:
    """In this process, and over a socket."""
    yield _beyond_the_stream(scale)
    yield _saved(scale)
    yield _served(scale)


def _endless() -> MergedDataset:
    return MergedDataset([Texts("a", 10**9)])


def _beyond_the_stream(scale: Scale) -> Row:
    count, best, alone = scale.ledger_prompts, float("inf"), float("inf")
    ledger, stream = PromptLedger(_endless()), iter(_endless())
    ledger.take(scale.ledger_open)
    for _ in range(scale.repetitions):
        begin = process_time()
        for _ in range(count // _AT_ONCE):
            ledger.done([prompt.id for prompt in ledger.take(_AT_ONCE)])
        best, begin = min(best, process_time() - begin), process_time()
        for _ in islice(stream, count):
            pass
        alone = min(alone, process_time() - begin)
    got = 1e6 * (best - alone) / count
    return Row(
        work=f"take({_AT_ONCE}) and done of a ledger with {scale.ledger_open:,} open prompts, beyond the stream",
        reach="≤ 15 µs a prompt",
        got=f"{got:.1f} µs",
        ok=got <= 15,
        from_=f"{1e6 * best / count:.1f} µs, the stream alone {1e6 * alone / count:.1f} µs",
    )


def _saved(scale: Scale) -> Row:
    ledger = PromptLedger(_endless(), drop_at=(0.0, 1.0))
    for _ in range(scale.ledger_scores // 10_000):
        ids = [prompt.id for prompt in ledger.take(10_000)]
        ledger.score(ids, [0.25] * len(ids))
        ledger.done(ids)
    empty = len(json.dumps(ledger.state_dict()))
    ledger.take(scale.ledger_open)
    begin = process_time()
    text = json.dumps(ledger.state_dict())
    saved_s, begin = process_time() - begin, process_time()
    PromptLedger(_endless(), drop_at=(0.0, 1.0)).load_state_dict(json.loads(text))
    loaded_s, size = process_time() - begin, (len(text) - empty) / scale.ledger_open
    return Row(
        work=f"saving and loading {scale.ledger_scores:,} scores and {scale.ledger_open:,} open prompts, JSON included",
        reach="< 1 s each, ≤ 100 bytes an open prompt",
        got=f"{saved_s:.2f} s, {loaded_s:.2f} s, {size:.0f} bytes",
        ok=max(saved_s, loaded_s) < 1 and size <= 100,
        from_=f"{len(text):,} bytes",
    )


def _served(scale: Scale) -> Row:
    ledger, forked = PromptLedger(_endless()), multiprocessing.get_context("fork")
    start, calls = forked.Barrier(_CLIENTS + 1), max(1, scale.ledger_prompts // (5 * _CLIENTS * _AT_ONCE))
    with ledger.serve() as server:
        clients = [forked.Process(target=_work, args=(server.url, server.token, start, calls)) for _ in range(_CLIENTS)]
        for client in clients:
            client.start()
        start.wait()
        begin = perf_counter()
        for client in clients:
            client.join()
        seconds = perf_counter() - begin
    count = calls * _CLIENTS * _AT_ONCE
    assert ledger.stats()["done"] == count
    return Row(
        work=f"a ledger's server: take({_AT_ONCE}) and done by {_CLIENTS} clients, samples of 1 KB",
        reach="≥ 2,000 prompts/s",
        got=f"{count / seconds:,.0f} prompts/s",
        ok=count / seconds >= 2000,
        from_=f"{count:,} prompts in {seconds:.1f} s, all of it on this machine's cores",
    )


def _work(url: str, token: str, start: multiprocessing.Barrier, calls: int) -> None:
    client = LedgerClient(url, token)
    client.stats()
    start.wait()
    for _ in range(calls):
        client.done([prompt.id for prompt in client.take(_AT_ONCE)])
