"""Jobs whose ranks go in step: what each step was made of, and the states of each resume."""

import json
from dataclasses import replace
from itertools import chain, islice

from streamdata import merge_states, mixed_collate, to_state
from streamdata.mixing.live_weights import live_after
from streamdata.tools.trace.era import document_name, record_of
from streamdata.tools.trace.trace import Trace
from tests.elastic.worlds import Config, Leaf, Mix
from tests.streams import loaded

SCHEDULES = ([[0, 0.5], [40, 0.1], [80, 0.1], [200, 0.9]], {"steps": [[0, 0.5], [50, 0.1], [120, 0.4]]})


class SteppedJob:
    """Ranks that deliver as many batches between two resumes.

    Args:
        mix: The tree of sources.
        config: How it begins.
    """

    def __init__(self, mix, config):
        self.mix, self.config, self.steps, self.states, self.saved = mix, config, [], {}, []
        self.marks, self.refusals = [], []
        self.setting = None
        """Weights that ranks set as they begin a leg, if they do."""

    def change(self, **changes):
        """Resume, changed or not."""
        self.config = replace(self.config, **changes)

    def go(self, steps, **changes):
        """Resume, changed or not, and deliver so many steps."""
        self.change(**changes)
        self.note([self._rank(rank, steps) for rank in range(self.config.dp_size)])

    def note(self, ranks):
        """Note the states of all ranks and the batches of each."""
        self.steps += [list(chain(*batches)) for batches in zip(*(batches for _, batches in ranks), strict=True)]
        self.states = json.loads(json.dumps(merge_states(*[states for states, _ in ranks])))
        self.saved.append(self.states)
        self.marks.append((list(self.steps), self.config))

    def give_up(self, number):
        """Go back to where it was after so many legs; what was saved since stays there."""
        steps, self.config = self.marks[number - 1]
        self.steps, self.states = list(steps), self.saved[number - 1]

    def _rank(self, rank, steps):
        dataset, states = self.mix.build(self.config), dict(self.states)
        dataset.set_data_parallel(self.config.dp_size, rank)
        dataset.set_dataloader_states(states)
        if self.setting is not None:  # as StreamLoader.set_weights does
            dataset.live = live_after(dataset, *self.setting)
            states.update(dataset.headers(self.config.num_workers))
            dataset.set_dataloader_states(states)
        # As many as may be: of a rank that has no share of any, there would be no end.
        passes = (loaded(dataset, self.config.num_workers, self.config.batch_size) for _ in range(2 * steps + 2))
        batches = [mixed_collate(batch) for batch in islice(chain.from_iterable(passes), steps)]
        for batch in batches:
            states.update(to_state(batch))
        return states, [[record_of(sample) for sample in batch] for batch in batches]

    def trace(self, *, with_all=False):
        """By the last states, or those of all resumes."""
        return Trace(self.mix.build(self.config), self.saved if with_all else [self.states])

    def check(self, how=None):
        """Each step that was delivered, by the last states of each size."""
        trace = self.trace(with_all=True)
        assert trace.num_steps == len(self.steps)
        for step, want in enumerate(self.steps, 1):
            got = trace.at(step)
            assert got.records == want, f"step {step} by {got.how} from {got.origin}"
            assert how in (None, got.how), f"step {step} by {got.how}"

    def check_found(self, rng, number):
        """Some records, at all steps at which they came; and at the next one."""
        came = {}
        for step, records in enumerate(self.steps, 1):
            for record in records:
                came.setdefault(tuple(record.items()), set()).add(step)
        trace = self.trace(with_all=True)
        for record, steps in rng.sample(sorted(came.items(), key=str), min(number, len(came))):
            found = trace.find(document_name(dict(record)))
            assert found[: len(steps)] == sorted(steps)
            for step in found[len(steps) :]:
                assert dict(record) in trace.at(step).records


def random_job(rng, *, function="plain"):
    """A tree, a topology, and some resumes."""
    cyclic, stop = rng.random() < 0.6, rng.choice(["all_exhausted", "first_exhausted"])
    leaves = [random_leaf(rng, name) for name in "abcd"[: rng.randint(2, 4)]]
    if function != "plain":
        leaves[0] = Leaf("a", 120, "map", function)
    children = leaves
    if rng.random() < 0.5:
        goes_on = cyclic or (stop == "first_exhausted" and rng.random() < 0.4)
        children = [leaves[0], Mix(tuple(leaves[1:]), "inner", cyclic=goes_on, stop=stop, seed=3)]
    mix = Mix(tuple(children), cyclic=cyclic, stop=stop, shuffle=rng.random() < 0.8)
    job = SteppedJob(mix, Config(rng.randint(1, 3), rng.randint(0, 3), rng.randint(1, 3), random_weights(rng, mix)))
    for number in range(rng.randint(1, 3)):
        changes = {"dp_size": rng.randint(1, 3), "num_workers": rng.randint(0, 3)} if rng.random() < 0.5 else {}
        changes |= {"weights": random_weights(rng, mix)} if rng.random() < 0.5 else {}
        job.go(rng.randint(1, 20), **changes if number else {})
    return job


def random_leaf(rng, name):
    """A source of some kind."""
    kind = rng.choice(["map", "ahead", "copies", "jsonl", "tar"])
    size = rng.choice([1, 2, 5, 30, 60] if kind in ("map", "ahead") else [12, 30, 60])
    return Leaf(name, size, kind, "plain", 3 if kind == "copies" else rng.choice([1, 3]), rng.choice([0, 6, 12]))


def random_weights(rng, mix):
    """Numbers, of which some give ties, and now and then a schedule in the top."""
    is_scheduled = {path: "." not in path and rng.random() < 0.2 for path in mix.paths()}
    return {path: rng.choice(SCHEDULES if is_scheduled[path] else [0.3, 1, 3, 1 / 3]) for path in mix.paths()}
