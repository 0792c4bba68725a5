"""A job of many ranks with many workers, in this process: it delivers, saves, crashes and goes on, changed or not."""

import json
import random
import shutil
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import Path

from streamdata import load_states, merge_states, mixed_collate, save_states, to_state
from streamdata.mixing.live_weights import live_after
from streamdata.states.progress import Progress
from tests.elastic.functions import tokens_of
from tests.elastic.ledger import Ledger, Rests
from tests.elastic.rests import Held, Lanes, check_rests


@dataclass(frozen=True)
class Saved:
    """What a rank wrote last."""

    states: str
    """As JSON; nothing where ranks save to a folder."""
    epoch_pass: int
    taken: Counter
    """How many records of each (path, pass, lane) were delivered since the topology began."""
    folder: Path | None = None
    """Where all ranks have saved a step."""
    fresh: str = "{}"
    """Without what was loaded when the topology changed."""

    def load(self):
        """The states, as a trainer has them after it has loaded them."""
        return json.loads(self.states or "{}") if self.folder is None else load_states(self.folder)


class Rank:
    """A trainer with its DataLoader and its own dict of states.

    Args:
        job: Whose it is.
        number: Which one.
        saved: Where it begins.
        expected: The batches that it must deliver first: what it had delivered after it saved.
    """

    def __init__(self, job, number, saved, expected=()):
        self.job, self.number, self.saved = job, number, saved
        self.states, self.fresh = saved.load(), json.loads(saved.fresh)
        self.epoch_pass, self.taken = saved.epoch_pass, Counter(saved.taken)
        self.expected, self.unsaved = deque(expected), []
        self.dataset = job.mix.build(job.config)
        self.dataset.set_data_parallel(job.config.dp_size, number)
        if self.states:
            self.dataset.set_dataloader_states(self.states)
        if job.setting is not None:  # as StreamLoader.set_weights does
            self.dataset.live = live_after(self.dataset, *job.setting)
            for states in (self.states, self.fresh):
                states.update(self.dataset.headers(job.config.num_workers))
            self.dataset.set_dataloader_states(self.states)
            self._note_left_out()  # with the header of a next deal, which may say that a pass has ended
        self._begin()

    def _begin(self):
        if self.job.sets_epoch:
            self.dataset.set_epoch(self.epoch_pass)
        self.batches = Lanes(self.dataset, self.job.config.num_workers, self.job.config.batch_size)

    def deliver(self):
        """The next batch; False where the pass ends instead, and the next one begins."""
        batch = next(self.batches, None)
        if batch is None:
            self.epoch_pass += 1
            self.job.ledger.rows_end(self.job.config.topology[1])
            self._begin()
            return False
        self._note_left_out()
        batch = mixed_collate(batch)
        for states in (self.states, self.fresh):
            states.update(to_state(batch))
        samples = [(tokens_of(sample), sample["__dprank__"], sample["__workerid__"]) for sample in batch]
        if self.expected:
            want = self.expected.popleft()
            assert samples == want, f"rank {self.number}: not the suffix\n  got  {samples}\n  want {want}"
        self.unsaved.append(samples)
        for tokens, _, worker in samples:
            self.job.ledger.add(tokens)
            self._follow(tokens[0], worker)
        return True

    def _note_left_out(self):
        is_left_out = bool(self.job.config.absent) or any(not live.weight for live in self.dataset.live.values())
        self.job.ended_without |= is_left_out and not self.job.mix.cyclic

    def _follow(self, token, worker):
        if token[0] in self.job.rests.leaves:
            path, number, epoch = self.job.ledger.epoch_of(token)
            lane = self.number * self.job.config.topology[1] + worker
            taken = self.taken[path, number, lane]
            self.job.rests.check((path, number, epoch, token[2]), taken, lane, self.job.config.lanes)
            self.taken[path, number, lane] += 1

    def has_lane(self, lane):
        """Whether the lane is one of this rank's."""
        return lane // self.job.config.topology[1] == self.number

    def save(self):
        """Write the states, and with them what was delivered."""
        folder = self.job.folder
        text = json.dumps(self.states) if folder is None else ""
        self.saved = Saved(text, self.epoch_pass, Counter(self.taken), folder, json.dumps(self.fresh))
        self.unsaved = []

    def held(self):
        """What it may save."""
        return Held(self.states, self.fresh, self.batches.state_dict)

    def cut_back(self):
        """What was not saved was not delivered; return it."""
        lost, self.unsaved = self.unsaved, []
        for batch in lost:
            for tokens, *_ in batch:
                self.job.ledger.take_back(tokens)
        return lost


_NOTHING = Saved("{}", 0, Counter())
"""Before anything was saved, to a folder or not."""


class Job:
    """Ranks that deliver in any sequence, and what must hold of all of them together.

    Args:
        mix: The tree of sources.
        config: How it begins.
        sets_epoch: Whether the trainers call set_epoch.
        rng: Decides what is left to chance, such as the sequence in which states are joined.
        folder: Where ranks save steps; by default each keeps its own dict, and saves when it likes.
    """

    def __init__(self, mix, config, *, sets_epoch=False, rng=None, folder=None):
        self.mix, self.config, self.sets_epoch = mix, config, sets_epoch
        self.rng, self.folder, self.step = rng or random.Random(0), folder, 0
        self.ledger, self.rests = Ledger(mix), Rests(mix)
        self.held, self.taken, self.num_rests = None, Counter(), 0
        """The topology of the states, and what its lanes had taken by then."""
        self.ended_without = False
        """Whether a pass may have ended while a source was absent, of which the rest of that pass never comes."""
        self.old = []
        """Dicts of earlier checkpoints, which may be joined again."""
        self.setting = None
        """While ranks are made that set weights: these, and the time of schedules."""
        self.ranks = [Rank(self, number, _NOTHING) for number in range(config.dp_size)]

    def deliver(self, number, batches=1):
        """Let a rank deliver."""
        for _ in range(batches):
            self.ranks[number % len(self.ranks)].deliver()

    def save(self, number=None):
        """A rank saves, or all."""
        some = self.ranks if number is None else [self.ranks[number % len(self.ranks)]]
        if self.folder is not None:
            self.step += 1
            step = self.step if any(rank.states for rank in self.ranks) else 0
            if not step:  # nothing is delivered at step 0 alone, of which all ranks have the same, whatever their size
                shutil.rmtree(self.folder / "step-0", ignore_errors=True)
            for rank in some if step else self.ranks:
                save_states(self.folder, rank.states, step=step, rank=rank.number, size=len(self.ranks))
        # Of a step that other ranks lack nothing is loaded.
        for rank in some if self.folder is None or len(some) == len(self.ranks) else ():
            rank.save()
        if number is None:
            check_rests(self)

    def joined(self):
        """What all ranks saved, in one dict, with stale copies among them."""
        if self.folder is not None:
            return self.ranks[0].saved.load()
        parts = [json.loads(rank.saved.states) for rank in self.ranks]
        parts += self.rng.sample(self.old, min(len(self.old), self.rng.randint(0, 2)))
        self.rng.shuffle(parts)
        states = note_idle(merge_states(*parts), self.config)
        self.old = [*self.old, states][-3:]
        return states

    def crash(self, *, join=True):
        """All ranks begin again from what they saved last, with all states or with their own."""
        text = json.dumps(self.joined()) if self.folder is None else ""
        lost = [rank.cut_back() for rank in self.ranks]
        saved = [replace(rank.saved, states=text) if join and text else rank.saved for rank in self.ranks]
        expected = [[*tail, *list(rank.expected)] for rank, tail in zip(self.ranks, lost, strict=True)]
        self.ranks = [Rank(self, number, saved[number], tail) for number, tail in enumerate(expected)]

    def change(self, **changes):
        """All ranks end; those of another topology, mixture or both begin from what was saved."""
        states = self.joined()
        for rank in self.ranks:
            rank.cut_back()
        self._settle(topology_of(states))
        before, self.config = self.config, replace(self.config, **changes)
        # Under the same topology too: where weights or sources changed, yield functions draw their open bursts anew.
        passes = {key.split("/")[2] for key in states if key.startswith("worker/")}
        self.ledger.topology_ends(before.lanes, len(passes))
        taken = Counter()
        if self.held is None or self.held == self.config.topology:
            taken = self.taken
        else:
            self.rests.deal(self.taken, self.held[0] * self.held[1])
        first = min(rank.saved.epoch_pass for rank in self.ranks)
        text = json.dumps(states) if self.folder is None else ""
        fresh = json.dumps(dict(states)) if self.held == self.config.topology else "{}"
        saved = replace(self.ranks[0].saved, states=text, epoch_pass=first, taken=taken, fresh=fresh)
        self.ranks = [Rank(self, number, saved) for number in range(self.config.dp_size)]

    def set_weights(self, weights):
        """All ranks save, set weights, and save before the next batch; False where the weights are refused."""
        self.save()
        dataset = self.ranks[0].dataset
        states = self.joined()
        time = dataset.time(self.config.num_workers, Progress(states))
        try:
            live_after(dataset, weights, time)
        except ValueError:
            return False
        self.setting = weights, time
        self.change()
        self.setting = None
        self.save()
        return True

    def _settle(self, held):
        """Note what the states say of lanes: a topology under which no rank saved is as if it had not been."""
        if held == self.config.topology:
            self.taken = Counter()
            for rank in self.ranks:
                self.taken.update({key: n for key, n in rank.saved.taken.items() if rank.has_lane(key[2])})
            self.rests.keep()
        else:
            self.rests.discard()
        self.held = held

    def set_pass(self, number):
        """All ranks save, and begin a pass, or go on in it."""
        self.save()
        saved = [replace(rank.saved, epoch_pass=number) for rank in self.ranks]
        for rank in self.ranks:
            rank.cut_back()
        self.ranks = [Rank(self, rank, one) for rank, one in enumerate(saved)]

    def finish(self):
        """Go on until all that was begun is delivered; nothing of it may be missing."""
        newest = self.ledger.newest()
        self.ledger.owed = set(self.ledger.missing(newest))
        for number in sorted({number for _, number in newest}) if self.sets_epoch else [None]:
            if number is not None:
                self.set_pass(number)
            for _ in range(100_000 // self.config.lanes):
                if not self._owed(number):
                    break
                for rank in self.ranks:
                    if number is None or rank.epoch_pass == number:
                        rank.deliver()
            owed = sorted(map(self.ledger.told, self._owed(number)))
            assert not owed, f"never came: {owed[:5]} … {len(owed)} in all"
        self.check()

    def _owed(self, number):
        owed = self.ledger.owed
        return owed if number is None else {token for token in owed if self.ledger.epoch_of(token)[1] == number}

    def check(self):
        """What must hold at any time."""
        self.ledger.check_known()
        self.ledger.check_rows(0 if self.mix.cyclic else self.config.lanes)


def note_idle(states, config):
    """Record, as saving and gathering do, which ranks of the present topology delivered nothing in its deal."""
    number, newest = newest_header(states)
    if newest is None or topology_of(states) != config.topology:
        return states
    held = {
        int(key.split("/")[3])
        for key in states
        if key.startswith("worker/") and int(key.split("/")[1]) >= newest["deal"]
    }
    return {**states, **{f"idle/{number}/{rank}": True for rank in set(range(config.dp_size)) - held}}


def newest_header(states):
    """The newest generation and its header; (-1, None) where there is none."""
    numbers = [int(key.partition("/")[2]) for key in states if key.startswith("generation/")]
    return (max(numbers), states[f"generation/{max(numbers)}"]) if numbers else (-1, None)


def topology_of(states):
    """Of the newest generation, None where there is none."""
    _, newest = newest_header(states)
    return newest and (newest["dp_size"], max(1, newest["num_workers"]))
