"""Trace equals what was delivered: random recipes, topologies and changes."""

import json
import logging

import pytest

from streamdata import merge_states, to_state
from streamdata.trace.trace import Trace, record_of
from tests.elastic.worlds import Config, Leaf, Mix
from tests.streams import loaded


class Run:
    """A job of ranks in step: what each step was made of, and states after each of them."""

    def __init__(self, mix, config):
        self.mix, self.config, self.steps, self.states = mix, config, [], {}
        self.saved = []

    def go(self, steps, **changes):
        """Resume, changed or not, and deliver so many steps."""
        for name, value in changes.items():
            object.__setattr__(self.config, name, value)
        own = []
        for rank in range(self.config.dp_size):
            dataset = self.mix.build(self.config)
            dataset.set_data_parallel(self.config.dp_size, rank)
            dataset.set_dataloader_states(self.states)
            own.append((dict(self.states), self._batches(dataset)))
        first = len(self.steps)
        self.steps += [[] for _ in range(steps)]
        for states, batches in own:
            for step, batch in zip(range(steps), batches, strict=False):
                from streamdata import mixed_collate

                batch = mixed_collate(batch)
                self.steps[first + step] += [record_of(sample) for sample in batch]
                states.update(to_state(batch))
        self.states = json.loads(json.dumps(merge_states(*[states for states, _ in own])))
        self.saved.append(self.states)

    def _batches(self, dataset):
        """Pass after pass."""
        for _ in range(1000):
            yield from loaded(dataset, self.config.num_workers, self.config.batch_size)

    def check(self, how=None, *, states=None, batch=None):
        """Each step that was delivered, by its states alone."""
        trace = Trace(self.mix.build(self.config), [self.states] if states is None else states, batch)
        for step, want in enumerate(self.steps):
            if want:
                got = trace.at(step)
                assert got.records == want, f"step {step} by {got.how} from {got.origin}"
                assert how in (None, got.how), step


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


MAPS = (Leaf("a", 30), Leaf("b", 7), Leaf("c", 12, "copies", block_size=3), Leaf("d", 60, "jsonl", block_size=3, shuffle_buffer=6))


def test_every_step_of_a_mixture_is_found_by_seek():
    run = Run(Mix(MAPS), Config(2, 2, 3, {"a": 0.5, "b": 0.2, "c": 0.2, "d": 0.1}))
    run.go(40)
    run.check("seek")
