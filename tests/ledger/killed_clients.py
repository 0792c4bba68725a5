"""Fifty clients of which some are killed while they work, and in the end the books agree.

`python -m tests.ledger.killed_clients --seconds 300` kills five a minute. Each client writes down what it has settled
once the server has said so. No prompt may be written down twice; what nobody wrote down was left to the ledger, or was
settled by a client that was killed before it could write: at most what one takes at once, for each kill.
"""

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path

from streamdata import LedgerClient, MergedDataset, PromptLedger, StaleAttempt
from tests.streams import Numbers

CLIENTS, AT_ONCE, LEASE_S = 50, 4, 3.0


def work(url, token, log, seed, until):
    """Take prompts, work on them for longer than the lease at times, settle them, write that down."""
    client, chance = LedgerClient(url, token), random.Random(seed)
    with log.open("a") as file:
        while time.monotonic() < until:
            prompts = client.take(chance.randint(1, AT_ONCE), lease_s=LEASE_S)
            time.sleep(chance.choice([0.02, 0.1, 0.3, 1.3 * LEASE_S] if chance.random() < 0.05 else [0.02, 0.1, 0.3]))
            for prompt in prompts:
                try:
                    how = chance.choice(["done", "done", "drop", "retry"])
                    getattr(client, how)([prompt.id], **{"reason": "equal"} if how == "drop" else {})
                except StaleAttempt:
                    how = "stale"
                line = json.dumps([how, prompt.source, *prompt.record_id]) + "\n"
                file.write(line)
                file.flush()


def main(seconds, kills_a_minute):
    """Run it; return what to print."""
    ledger, forked, chance = (
        PromptLedger(MergedDataset([Numbers("a", 10**6)])),
        multiprocessing.get_context("fork"),
        random.Random(1),
    )
    until, kills = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as folder, ledger.serve() as server:
        log, clients = Path(folder) / "log", []
        while time.monotonic() < until:
            while len(clients) < CLIENTS:
                seed = CLIENTS + kills if clients else 0
                clients.append(
                    forked.Process(target=work, args=(server.url, server.token, log, chance.random() + seed, until))
                )
                clients[-1].start()
            time.sleep(min(60 / kills_a_minute, max(0.0, until - time.monotonic())))
            victim = clients.pop(chance.randrange(len(clients)))
            victim.kill()
            victim.join()
            kills += 1
        for client in clients:
            client.join()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    settled = [tuple(place) for how, *place in lines if how in ("done", "drop")]
    assert len(settled) == len(set(settled)), "a prompt was settled twice"
    time.sleep(LEASE_S)  # then what clients held is due
    assert ledger.stats()["open"] == 0
    rest = [(prompt.source, *prompt.record_id) for prompt in ledger.take(int(ledger.stats()["due"]) or 1)]
    ledger.done(list(ledger._open))
    stats = ledger.stats()
    assert not set(rest) & set(settled), "a prompt came again after it was settled"
    assert stats["taken"] == stats["done"] + stats["dropped"]
    unwritten = stats["taken"] - len(settled) - len(rest)
    assert 0 <= unwritten <= kills * AT_ONCE, f"{unwritten} prompts are in nobody's books"
    stale = sum(how == "stale" for how, *_ in lines)
    return (
        f"{seconds} s, {CLIENTS} clients, {kills} killed: {stats['taken']:,} prompts, {stats['attempts']:,} attempts; "
        f"{len(settled):,} settled by clients, {len(rest)} left open, {unwritten} settled and not written down, "
        f"{stale} settlements stale; none twice, none lost"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--kills", type=float, default=5, help="a minute")
    arguments = parser.parse_args()
    print(main(arguments.seconds, arguments.kills), f"(pid {os.getpid()})")
