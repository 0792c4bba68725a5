"""A random machine of takers, settlements, retries, leases, saves and loads, against a model of what should happen.

`python -m tests.ledger.machine --runs 10000` makes as many runs of 50 steps as one likes; `make test` makes 200.
"""

import argparse
import math
import time
from copy import deepcopy
from types import SimpleNamespace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from streamdata import LedgerClient, MergedDataset, PromptLedger, StaleAttempt
from streamdata.ledger import ledger as module
from streamdata.ledger.server import Requests
from tests.streams import Numbers, plain, through_json

DROP_AT, AGAIN_AFTER = (0.0, 1.0), 1


def make():
    """A stream of 36 prompts: four epochs of two sources."""
    sources = [Numbers("a", 6, 2, max_epochs=4), Numbers("b", 3, max_epochs=4)]
    return MergedDataset(sources, stop="all_exhausted", seed=5)


SAMPLES = {(sample["__datasetname__"], sample["__record__"][1:]): plain(sample) for sample in make()}
STREAM = list(SAMPLES)


class Model:
    """A ledger in a few lines.

    In `due` is what is to be taken again: after how many attempts (-2 first, -1 then), a number, place and attempt.
    """

    def __init__(self):
        self.at = self.attempts = self.number = self.left_out = 0
        self.due, self.open, self.scores = [], {}, {}

    def push(self, place, at, attempt):
        self.number += 1
        self.due.append((at, self.number, place, attempt))

    def expire(self, now):
        for _, _, place in sorted((e.deadline, e.taken_at, p) for p, e in self.open.items() if e.deadline <= now):
            self.push(place, -1, self.open.pop(place).attempt)

    def next(self):
        due = min(self.due, default=None)
        if due is None or due[0] > self.attempts:
            while self.at < len(STREAM):
                source, (epoch, number, _) = place = STREAM[self.at]
                self.at += 1
                value, scored = self.scores.get((source, number), (0.5, 0))
                if DROP_AT[0] < value < DROP_AT[1] or not scored < epoch <= scored + AGAIN_AFTER:
                    return place, 0
                self.left_out += 1
        if due is not None:
            self.due.remove(due)
            return due[2:]
        return None

    def take(self, n, taker, lease_s, now):
        taken = []
        while len(taken) < n and (found := self.next()) is not None:
            place, attempt = found[0], found[1] + 1
            lease = {"taker": taker, "lease_s": lease_s, "deadline": now + lease_s}
            self.open[place] = SimpleNamespace(attempt=attempt, taken_at=self.attempts, **lease)
            self.attempts += 1
            taken.append((place, attempt, self.scores.get((place[0], place[1][1]), (None,))[0]))
        return taken

    def is_open(self, place, attempt, taker):
        entry = self.open.get(place)
        return entry is not None and attempt in (None, entry.attempt) and taker in (None, entry.taker)

    def settle(self, how, place, value, now):
        entry = self.open[place]
        if how == "renew":
            entry.deadline = now + entry.lease_s
        elif how == "keep":
            entry.deadline = entry.lease_s = math.inf
        else:
            del self.open[place]
            if how == "retry":
                self.push(place, self.attempts + value, entry.attempt)

    def load(self):
        due, self.due = sorted(self.due), []
        opened = [(place, attempt) for at, _, place, attempt in due if at == -2]  # by the load before, and still
        for place, attempt in opened + [(place, entry.attempt) for place, entry in self.open.items()]:
            self.push(place, -2, attempt)
        for at, _, place, attempt in due:
            if at > -2:
                self.push(place, max(at, self.attempts), attempt)
        self.open = {}


class Machine(RuleBasedStateMachine):
    """Does the same to a ledger and to the model; clients ask as through a server, and some answers get lost."""

    def __init__(self):
        super().__init__()
        self.clock = SimpleNamespace(now=0.0, date=2_000_000_000)
        module.time = SimpleNamespace(monotonic=lambda: self.clock.now, time=lambda: self.clock.date)
        self.model, self.taken, self.settled, self.saved = Model(), [], [], []
        self.begin(None)

    def begin(self, state):
        self.ledger = PromptLedger(make(), drop_at=DROP_AT, again_after=AGAIN_AFTER)
        if state is not None:
            self.ledger.load_state_dict(through_json(state))
        self.load = self.ledger._load
        self.requests = Requests(self.ledger)
        self.clients = [self.client() for _ in range(3)]

    def client(self):
        client = LedgerClient("http://nowhere:1", "token")

        def answer(operation, body):
            found = self.requests.answer(operation, body)
            return self.requests.answer(operation, body) if self.loses else found

        client._answer = answer
        return client

    def taker(self, who):
        return (self.ledger, None) if who == 3 else (self.clients[who], self.clients[who]._name)

    @rule(
        n=st.integers(1, 7), who=st.integers(0, 3), lease_s=st.sampled_from([1, 2, 5]), keeps=st.booleans(),
        loses=st.booleans(),
    )  # fmt: skip
    def take(self, n, who, lease_s, keeps, loses):
        self.loses = loses
        (taker, name), lease_s = self.taker(who), math.inf if who == 3 and keeps else lease_s
        self.model.expire(self.clock.now)
        prompts = taker.take(n, lease_s=lease_s)
        wanted = self.model.take(n, name, lease_s, self.clock.now)
        assert [((p.source, p.record_id), p.attempt, p.score) for p in prompts] == wanted, (prompts, wanted)
        for prompt in prompts:
            place = prompt.source, prompt.record_id
            assert plain(prompt.sample) == SAMPLES[place]
            assert all(prompt.id != other for other, *_, known in self.taken if known != place)
            self.taken.append((prompt.id, prompt.attempt, self.load, place))

    @precondition(lambda self: self.taken)
    @rule(
        which=st.lists(st.integers(0, 12), min_size=1, max_size=3, unique=True),
        who=st.sampled_from([0, 1, 2, 3, 3, 3]),
        how=st.sampled_from(["done", "done", "drop", "retry", "retry", "renew", "keep"]), value=st.integers(0, 6),
        by_id=st.booleans(), loses=st.booleans(), owns=st.sampled_from([True, True, False]),
    )  # fmt: skip
    def settle(self, which, who, how, value, by_id, loses, owns):
        self.loses = loses
        known, entries = self.taken[::-1], self.model.open
        if owns and entries:  # else most settlements would be stale
            known = [one for one in known if one[3] in entries and one[1:3] == (entries[one[3]].attempt, self.load)]
            owner = entries[known[which[0] % len(known)][3]].taker
            known = [one for one in known if entries[one[3]].taker == owner]
            who = next((number for number in range(3) if self.taker(number)[1] == owner), 3)
        named = {one[0]: one for one in (known[number % len(known)] for number in which)}.values()
        how = "renew" if how == "keep" and who != 3 else how
        taker, name = self.taker(who)
        by_id = by_id and who == 3
        self.model.expire(self.clock.now)
        arguments = {"drop": ("equal",), "retry": (value,)}.get(how, ())
        ids = [prompt if by_id else (prompt, attempt) for prompt, attempt, *_ in named]
        try:
            getattr(taker, how)(ids, *arguments)
            is_done = True
        except StaleAttempt:
            is_done = False
        assert is_done == all(
            load == self.load and self.model.is_open(place, None if by_id else attempt, name)
            for _, attempt, load, place in named
        )
        for *_, place in named if is_done else ():
            self.model.settle(how, place, value, self.clock.now)
            self.settled += [place] * (how in ("done", "drop"))

    @precondition(lambda self: self.taken)
    @rule(number=st.integers(0, 12), value=st.sampled_from(["0", "0.25", "1"]), who=st.integers(0, 3))
    def score(self, number, value, who):
        self.loses = False
        prompt, _, load, (source, (epoch, record, _)) = self.taken[-1 - number % len(self.taken)]
        try:
            self.taker(who)[0].score([prompt], [float(value)])
            assert load == self.load
            self.model.scores[source, record] = (float(value), epoch)
        except StaleAttempt:
            assert load != self.load

    @rule(seconds=st.sampled_from([0, 0.5, 1, 3]), dies=st.integers(0, 5))
    def wait(self, seconds, dies):
        self.clock.now += seconds
        if dies < len(self.clients):
            self.clients[dies] = self.client()

    @rule(number=st.integers(-4, 2))
    def save_or_load(self, number):
        if number < 0 or not self.saved:
            self.model.expire(self.clock.now)
            self.saved = [*self.saved, (self.ledger.state_dict(), deepcopy(self.model), list(self.settled))][-3:]
            return
        self.clock.date += 2  # else ids of two restores might be the same
        state, model, settled = self.saved[number % len(self.saved)]
        self.model, self.settled = deepcopy(model), list(settled)
        self.model.load()
        self.begin(state)

    def check(self):
        self.model.expire(self.clock.now)
        stats = self.ledger.stats()
        assert (stats["open"], stats["due"]) == (len(self.model.open), len(self.model.due))
        assert (stats["done"] + stats["dropped"], stats["left_out"]) == (len(self.settled), self.model.left_out)

    def teardown(self):
        """Whatever was done: in the end each prompt of the stream was settled once, or left out."""
        self.check()
        self.ledger.retry(prompt for prompt in list(self.ledger._open))
        while prompts := self.ledger.take(7):
            self.settled += [(prompt.source, prompt.record_id) for prompt in prompts]
            self.ledger.done([prompt.id for prompt in prompts])
        assert self.ledger.finished
        assert len(self.settled) == len(set(self.settled)) == len(STREAM) - self.ledger.stats()["left_out"]
        module.time = time


def run(num_runs):
    """Make so many runs of 50 steps."""
    chosen = settings(max_examples=num_runs, stateful_step_count=50, deadline=None, database=None)
    run_state_machine_as_test(Machine, settings=chosen)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    run(parser.parse_args().runs)
