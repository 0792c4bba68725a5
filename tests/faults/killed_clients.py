"""50 clients of a ledger, of which 5 a minute are killed: `python -m tests.faults.killed_clients --minutes 5`.

Each writes down what it took, and what it settled: before the request, and after the answer. Some are so slow that
their leases run out. At the end the ledger is saved and loaded, and each prompt must be in one place: settled by one
client, or given by the loaded ledger. Only where a client was killed within a request, either will do.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from streamdata import LedgerClient, MergedDataset, Prompt, PromptLedger, StaleAttempt
from tests.streams import Numbers

CLIENTS, KILLS_A_MINUTE, LEASE_S, STATES_S = 50, 5, 4.0, 2.0
MAX_AFTER = 100
"""Prompts taken before one that is retried."""
SHARE_SLOW = 0.02
"""Of what is taken, for which the client takes longer than its lease."""
BEYOND = 2 * MAX_AFTER
"""New prompts that the loaded ledger gives, at least."""

Record = tuple[str, int, int]
"""Source, epoch and number of a record."""


class Books(NamedTuple):
    """What all clients have written down."""

    taken: dict[int, Record]
    """By id."""
    settled: Counter[int]
    """How often the ledger said yes, by id."""
    unsure: set[int]
    """Ids of requests whose answer no one saw."""
    num_stale: int
    """Settlements that the ledger refused."""


def stream() -> MergedDataset:
    """Epoch after epoch of two sources."""
    return MergedDataset([Numbers("a", 5000, percent=2), Numbers("b", 3000, percent=1)], seed=11)


def work(client: LedgerClient, path: Path) -> None:
    """Take prompts and settle them, until there is a file `stop` in the folder; a client's process."""
    rng = random.Random(str(path))
    with path.open("w", buffering=1) as file:

        def ask(operation: str, ids: list[int], *more: object) -> None:
            print(json.dumps(["asked", operation, ids]), file=file)
            try:
                getattr(client, operation)(ids, *more)
                print(json.dumps(["yes", operation, ids]), file=file)
            except StaleAttempt:
                print(json.dumps(["stale", operation, ids]), file=file)

        while not path.with_name("stop").exists():
            prompts = client.take(rng.randint(1, 6), LEASE_S)
            for prompt in prompts:
                print(json.dumps(["took", prompt.id, [prompt.source, *prompt.record_id[:2]]]), file=file)
            is_slow = rng.random() < SHARE_SLOW
            time.sleep(LEASE_S * 1.5 if is_slow else rng.uniform(0.2, 2.0))
            ids: dict[str, list[int]] = {"done": [], "drop": [], "retry": []}
            for prompt in prompts:
                ids[rng.choices(list(ids), (7, 2, 1))[0]].append(prompt.id)
            ask("done", ids["done"])
            ask("drop", ids["drop"], "equal")
            ask("retry", ids["retry"], rng.randrange(MAX_AFTER))


def read_books(folder: Path) -> Books:
    """Read what all clients have written, up to the last whole line of each."""
    books = Books({}, Counter(), set(), 0)
    num_stale = 0
    for path in folder.glob("*.jsonl"):
        asked: list[int] = []
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            event, what, ids = json.loads(line)
            if event == "took":
                assert books.taken.setdefault(what, tuple(ids)) == tuple(ids), f"two records have the id {what}"
                continue
            asked = ids if event == "asked" and what != "retry" else []
            books.settled.update(ids if event == "yes" and what != "retry" else ())
            num_stale += len(ids) * (event == "stale")
        books.unsure.update(asked)
    return books._replace(num_stale=num_stale)


def compare(books: Books, records: list[Record], held: Iterable[Record], num_settled: int) -> str:
    """Say in words that the books agree.

    Args:
        books: Those of the clients.
        records: Those that the ledger has taken from the stream, which it must have given in this order.
        held: Those that it gives again after it was saved and loaded.
        num_settled: How many it says are done or dropped.

    Raises:
        AssertionError: They do not.
    """
    again = Counter(held)
    assert max(again.values(), default=1) == 1, "the ledger holds a prompt twice"
    for prompt_id, record in books.taken.items():
        assert records[prompt_id & 0xFFFFFFFF] == record, f"{record} came out of order"
    settled = Counter({records[each & 0xFFFFFFFF]: count for each, count in books.settled.items()})
    unsure = {records[each & 0xFFFFFFFF] for each in books.unsure}
    assert max(settled.values()) == 1, f"settled twice: {settled.most_common(3)}"
    assert not settled.keys() & again.keys(), f"settled, and given again: {sorted(settled.keys() & again.keys())[:3]}"
    lost = set(records) - settled.keys() - again.keys() - unsure
    assert not lost, f"lost: {sorted(lost)[:3]}"
    assert again.keys() <= set(records), "the ledger holds what it never took"
    assert num_settled == len(records) - len(again), f"the ledger settled {num_settled}"
    return (
        f"books agree: {len(records):,} prompts, each once: {len(settled):,} settled, {len(again)} given again; "
        f"{len(set(records) - settled.keys() - again.keys())} settled by clients that did not live to hear of it, "
        f"{books.num_stale:,} settlements refused as stale"
    )


def run(folder: Path, minutes: float) -> str:
    """Serve a ledger to clients, kill some, and compare the books."""
    context, rng = multiprocessing.get_context("forkserver"), random.Random(5)
    context.set_forkserver_preload(["streamdata.ledger.client", "tests.streams"])  # else each imports torch
    ledger, clients, longest_s = PromptLedger(stream()), list[multiprocessing.process.BaseProcess](), 0.0
    with ledger.serve() as server:

        def start(number: int) -> None:
            options = LedgerClient(server.url, server.token), folder / f"{number}.jsonl"
            clients.append(context.Process(target=work, args=options))
            clients[-1].start()

        for number in range(CLIENTS):
            start(number)
        num_kills, started = 0, time.monotonic()
        while (minute := (time.monotonic() - started) / 60) < minutes:
            if minute > (num_kills + 1) / KILLS_A_MINUTE:
                victim = clients.pop(rng.randrange(len(clients)))
                victim.kill()
                victim.join()
                start(CLIENTS + num_kills)
                num_kills += 1
            time.sleep(STATES_S * rng.random())
            began = time.perf_counter()
            state = json.dumps(ledger.state_dict())
            longest_s = max(longest_s, time.perf_counter() - began)
            assert all(client.is_alive() for client in clients), "a client has failed"
        (folder / "stop").touch()
        for client in clients:
            client.join()
            assert client.exitcode == 0, "a client has failed"
    state, stats = json.dumps(ledger.state_dict()), ledger.stats()
    records = records_of(PromptLedger(stream()).take(int(stats["taken"]) + BEYOND))
    loaded = PromptLedger(stream())
    loaded.load_state_dict(json.loads(state))
    prompts = loaded.take(int(stats["open"] + stats["due"]) + BEYOND)
    new = records_of(prompt for prompt in prompts if prompt.attempt == 1)
    assert new == records[-BEYOND:], "the loaded ledger does not go on where the stream stood"
    held = records_of(prompt for prompt in prompts if prompt.attempt > 1)
    words = compare(read_books(folder), records[:-BEYOND], held, int(stats["done"] + stats["dropped"]))
    killed = f"{num_kills} of {num_kills + CLIENTS} clients killed"
    return f"{killed}; {words}; a state took {longest_s * 1000:.0f} ms at most"


def records_of(prompts: Iterable[Prompt]) -> list[Record]:
    return [(prompt.source, *prompt.record_id[:2]) for prompt in prompts]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        print(run(Path(folder), minutes))
