"""Random jobs: trees, topologies, saves, crashes and changes out of a seed."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from streamdata.mixing.tree import named_nodes
from streamdata.states.progress import Progress
from tests.elastic.functions import FUNCTIONS, VARIANTS, YIELDS
from tests.elastic.job import Job
from tests.elastic.worlds import Config, Leaf, Mix

KINDS = ("map", "map", "map", "ahead", "copies", "jsonl", "tar", "gz")
SIZES = (1, 2, 5, 12, 30, 60)
_LATER = {name for names in VARIANTS.values() for name in names}
_FUNCTIONS, _YIELDS = ([name for name in names if name not in _LATER] for names in (FUNCTIONS, YIELDS))


def random_leaf(rng, name):
    """A source of any kind."""
    kind = rng.choice(KINDS)
    size = rng.choice(SIZES if kind in ("map", "ahead") else (12, 30, 60))
    function = rng.choice(["plain", "plain", *_FUNCTIONS])
    # In each epoch of each lane something must come out, or it is an error.
    if size < 60 and function not in ("plain", "echo", "packer"):
        function = "plain"
    if function.partition(",")[0] in ("split", "wanted", "failing", "sift", "brittle"):
        kind, size = rng.choice(("map", "ahead", "jsonl")), 120
    block_size, buffer = rng.choice((1, 3)) if kind != "copies" else 3, rng.choice((0, 6, 12))
    return Leaf(name, size, kind, function, block_size, buffer)


def random_mix(rng):
    """Two to four sources, some of them below another mixture."""
    cyclic, stop = rng.random() < 0.6, rng.choice(("all_exhausted", "all_exhausted", "first_exhausted"))
    leaves = [random_leaf(rng, name) for name in "abcd"[: rng.randint(2, 4)]]
    children = leaves
    if cyclic and stop == "all_exhausted" and rng.random() < 0.3:
        leaves[1] = replace(leaves[1], max_epochs=rng.choice((1, 2, 5)))
    if rng.random() < 0.4:
        if cyclic:
            rng.random()  # so that jobs that once failed are what they were: it decided what is refused now
        inner = Mix(
            tuple(leaves[1:]),
            "inner",
            cyclic=cyclic,
            stop=stop,
            function=rng.choice(["", *_YIELDS]) if rng.random() < 0.5 else "",
            seed=3,
        )
        children = [leaves[0], inner]
    function = rng.choice(_YIELDS) if rng.random() < 0.2 else ""
    mix = Mix(tuple(children), cyclic=cyclic, stop=stop, function=function, shuffle=rng.random() < 0.8)
    if rng.random() < 0.2:
        mix = replace(mix, has_cost=True)
    if rng.random() < 0.2:
        by_index = [(path, leaf) for path, leaf in mix.leaves() if leaf.size >= 30 and "records" in _unit(leaf)]
        mix = replace(mix, skip=frozenset((path, rng.randrange(leaf.size)) for path, leaf in by_index * 3))
    return mix


def varied(node, rng):
    """The tree with variants in the place of some functions."""
    function = rng.choice((node.function, *VARIANTS.get(node.function, ())))
    if isinstance(node, Leaf):
        return replace(node, function=function)
    return replace(node, function=function, children=tuple(varied(child, rng) for child in node.children))


def _unit(leaf):
    return "records by index" if leaf.kind in ("map", "ahead", "copies") else "lines and members by key"


def random_topology(rng):
    """Few ranks and workers."""
    return {"dp_size": rng.choice((1, 2, 3, 5)), "num_workers": rng.choice((0, 0, 1, 2, 2))}


class Walk:
    """One random job.

    Args:
        seed: Decides all of it.
        is_elastic: Whether topologies change.
        folder: Where a quarter of the jobs save.
        varies: Whether variants of functions are among it.
        sets: Whether weights are set while it goes on.
    """

    def __init__(self, seed, *, is_elastic=True, folder=None, varies=True, sets=False):
        self.rng = rng = random.Random(seed)
        self.mix, self.varies = random_mix(rng), varies
        if varies:
            self.mix = varied(self.mix, random.Random(f"{seed}, varied"))
        self.is_elastic = is_elastic
        self.counts = Counter()
        self.trace = []
        self.is_whole = 0
        config = Config(**random_topology(rng), batch_size=rng.choice((1, 1, 2, 5)), weights=self._rare(seed))
        sets_epoch = rng.random() < 0.3
        folder = folder if rng.random() < 0.25 else None
        self.job = Job(self.mix, config, sets_epoch=sets_epoch, rng=rng, folder=folder)
        self.actions = {
            self.deliver: 60,
            self.save_one: 12,
            self.save_all: 4,
            self.crash: 8,
            self.resize: 5 if is_elastic else 0,
            self.reweigh: 3,
            self.leave_out: 3,
            self.all_at_once: 2 if is_elastic else 0,
            self.restart_often: 1 if is_elastic and varies else 0,
        }
        if sets:
            self.actions[self.set_weights] = 12

    def step(self):
        """Do one thing."""
        (action,) = self.rng.choices(list(self.actions), list(self.actions.values()))
        self.counts[action.__name__] += 1
        self.trace.append(action.__name__)
        action()

    def finish(self):
        """Bring all sources back, and go on to the end of all that was begun."""
        topology = random_topology(self.rng) if self.is_elastic else {}
        self.job.save()
        weights = {"weights": {}} if self.mix.cyclic else {}  # an epoch of a rare source would take long
        self._change("finish", absent=frozenset(), **weights, **topology)
        if self.job.ranks[0].dataset.live:
            self.job.set_weights({path: 1.0 for path, percent in self._settable().items() if percent})
        self.counts["finish"] += 1
        self.is_whole = int(self.must_be_whole)
        if self.is_whole:
            self.job.finish()
        else:
            for _ in range(50):
                self.job.deliver(self.rng.randrange(99))
            self.job.check()

    @property
    def must_be_whole(self):
        """Whether all of an epoch is promised: a pass that ends with its first source leaves the rest over."""
        finite = [part for part in self.mix.mixtures() if not part.cyclic]
        return not (any(part.stop == "first_exhausted" for part in finite) or self.job.ended_without)

    def totals(self):
        """What it came to, for figures."""
        ledger = self.job.ledger
        return {
            "steps": sum(self.counts.values()),
            "tokens delivered once": len(ledger.delivered),
            "tokens again, of yield functions": ledger.repeats,
            "short rows": sum(ledger.short_rows.values()),
            "jobs compared with all that they owed": self.is_whole,
        }

    def deliver(self):
        """One rank delivers some batches."""
        number, batches = self.rng.randrange(99), self.rng.choice((1, 1, 2, 3, 8))
        self.trace.append(f"rank {number % len(self.job.ranks)}: {batches}")
        self.job.deliver(number, batches)

    def save_one(self):
        """One rank saves."""
        self.job.save(self.rng.randrange(99))

    def save_all(self):
        """All do."""
        self.job.save()

    def crash(self):
        """The same job goes on."""
        self.job.crash(join=self.is_elastic and self.rng.random() < 0.6)

    def resize(self):
        """Another topology."""
        self._change("resize", **random_topology(self.rng))

    def reweigh(self):
        """Other weights."""
        self._change("reweigh", weights=self._weights())

    def set_weights(self):
        """Other weights, in the states and not in the recipe."""
        paths = [*self._settable()]
        some = self.rng.sample(paths, self.rng.randint(1, len(paths)))
        weights = {path: self.rng.choice((0, 0.05, 0.3, 1, 1, 4)) for path in some}
        self.trace.append(f"set_weights: {weights}")
        self.counts["weights refused"] += not self.job.set_weights(weights)

    def _settable(self):
        """The percents of nodes whose weights can be set: none below an inner yield function."""
        joining = {part.name for part in self.mix.children if isinstance(part, Mix) and part.function}
        nodes = named_nodes(self.job.ranks[0].dataset)
        return {path: one.percent for path, one in nodes.items() if path.rpartition(".")[0] not in joining}

    def leave_out(self):
        """Sources leave and return."""
        self._change("leave_out", absent=self._absent(), absent_as_zero=self.rng.random() < 0.5)

    def all_at_once(self):
        """Topology, weights and sources."""
        self._change("all_at_once", weights=self._weights(), absent=self._absent(), **random_topology(self.rng))

    def restart_often(self):
        """One size after another, each of which delivers next to nothing."""
        for _ in range(30 if self.rng.random() < 0.05 else self.rng.randint(2, 6)):
            for number in range(self.rng.randint(0, 3)):
                self.job.deliver(number)
            self.job.save()
            self._change("again", **random_topology(self.rng))

    def _change(self, name, **changes):
        self.trace.append(f"{name}: {changes}")
        if self.set_weights in self.actions:  # something must be left of each mixture
            saved = Progress(self.job.ranks[0].saved.load())
            held = saved.tree(saved.newest).set_percents if saved else {}
            if stopped := {path: 1 for path, live in held.items() if not live.percent}:
                self.job.set_weights(stopped)
        if not self.is_elastic:  # a rank that delivered nothing is refused
            for number in range(len(self.job.ranks)):
                self.job.deliver(number)
            self.job.save()
        self.job.change(**changes)

    def _rare(self, seed):
        """In some jobs sources are hardly ever drawn at first. With numbers of their own: a seed keeps its others."""
        rng = random.Random(f"{seed}, rare")
        if not self.varies or rng.random() < 0.7:
            return {}
        return {path: rng.choice((1, 0.1, 0.03)) for path, _ in list(self.mix.leaves())[1:]}

    def _weights(self):
        # The first of a mixture has a share at any time: one at which all have none is an error.
        first = {mix.children[0].name for mix in self.mix.mixtures()}
        return {path: self._percent(path, is_first=path.rpartition(".")[2] in first) for path in self.mix.paths()}

    def _percent(self, path, *, is_first):
        numbers = [self.rng.choice((0.3, 0.5, 1, 1, 2, 3)) for _ in range(3)]
        # A schedule below an inner yield function is refused.
        inner = any(part.function for part in self.mix.children if isinstance(part, Mix))
        if is_first or (inner and not self.varies) or self.rng.random() < 0.7:
            return numbers[0]
        times = sorted(self.rng.sample(range(1, 900), 2))
        points = [
            [0, numbers[0]],
            [times[0], self.rng.choice((0 if "." not in path else 1, numbers[1]))],
            [times[1], numbers[2]],
        ]
        kind = {"steps": points} if self.rng.random() < 0.5 else points
        return numbers[0] if inner and "." in path else kind

    def _absent(self):
        # The first stays, so that states and recipe have a source in common; a mixture keeps one of its sources.
        paths = [path for path, _ in self.mix.leaves()][1:]
        absent = {path for path in paths if self.rng.random() < 0.4}
        if any("." in path for path in paths) and all(path in absent for path in paths):
            absent = {"inner"} if self.rng.random() < 0.5 else absent - {paths[0]}
        return frozenset(absent)


def run_walk(seed, steps=60, *, is_elastic=True, varies=True, sets=False):
    """A random job from its start to its end.

    Raises:
        AssertionError: Something does not hold; a note says how to see it again.
    """
    with TemporaryDirectory() as folder:
        walk = Walk(seed, is_elastic=is_elastic, folder=Path(folder), varies=varies, sets=sets)
        try:
            for _ in range(steps):
                walk.step()
            walk.finish()
        except Exception as error:
            told = f"random job {seed}, {steps} steps: {walk.mix}\n{walk.job.config}"
            error.add_note("\n  ".join([told, *walk.trace]))
            raise
    return walk
