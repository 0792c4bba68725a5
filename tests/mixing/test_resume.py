"""Resume is the suffix: over kinds of functions, nested mixtures, yield functions, numbers of workers."""

import tracemalloc
from itertools import cycle, islice

import pytest

from streamdata import MergedDataset, SourceError, StateError, record_rng, to_state
from tests.streams import Numbers, NumbersAhead, assert_exact_resume, loaded, resumed


def odd_only(record: dict) -> dict | None:
    return record if record["value"] % 2 else None


def one_to_many(record: dict) -> list[dict]:
    return [{"value": record["value"], "part": part} for part in range(record["value"] % 4)]


def noisy(record: dict) -> dict:
    return {**record, "noise": float(record_rng(record).random())}


def filter_stream(records):
    for record in records:
        if record["value"] % 3:
            yield record


def one_to_many_stream(records):
    for record in records:
        for part in range(record["value"] % 4):
            yield {"value": record["value"], "part": part}


def many_to_one_stream(records):
    group = []
    for record in records:
        group.append(record["value"])
        if len(group) == 3:
            yield {"group": group}
            group = []
    if group:
        yield {"group": group}


def irregular_stream(records):
    """Pulls two, gives three; pulls one, gives none; and so on."""
    for first in records:
        second = next(records, first)
        for part in range((first["value"] + second["value"]) % 4):
            yield {"pair": (first["value"], second["value"]), "part": part}


class Packer:
    """A stateful stream: packs numbers, each value % 5 + 1 times, into rows of 4; holds back what fills no row."""

    def __init__(self):
        self.state = {"rewind": 0, "skip": 0}

    def state_dict(self):
        return {"rewind": len(self.held), "skip": self.skip}

    def load_state_dict(self, state):
        self.state = state

    def __call__(self, records):
        self.held, self.skip = [], self.state["skip"]
        for record in records:
            self.held.append([record["value"]] * (record["value"] % 5 + 1))
            while sum(map(len, self.held)) - self.skip >= 4:
                yield {"row": self._take()}
        while sum(map(len, self.held)) - self.skip > 0:
            yield {"row": self._take()}

    def _take(self):
        flat = [value for part in self.held for value in part][self.skip :]
        self.skip += 4
        while self.held and self.skip >= len(self.held[0]):
            self.skip -= len(self.held.pop(0))
        if not self.held:
            self.skip = 0
        return flat[:4]


FUNCTIONS = {
    "plain": {},
    "filter": {"single_process_fn": odd_only},
    "one_to_many": {"single_process_fn": one_to_many},
    "noisy": {"single_process_fn": noisy},
    "filter_stream": {"process_fn": filter_stream},
    "one_to_many_stream": {"process_fn": one_to_many_stream},
    "many_to_one_stream": {"process_fn": many_to_one_stream},
    "irregular_stream": {"process_fn": irregular_stream},
    "packer": {"process_fn": Packer()},
    "single_then_stream": {"single_process_fn": one_to_many, "process_fn": many_to_one_stream},
    "single_then_packer": {"single_process_fn": one_to_many, "process_fn": Packer()},
}


@pytest.mark.parametrize(("name", "kind"), list(zip(FUNCTIONS, cycle([Numbers, NumbersAhead]), strict=False)))
def test_every_kind_of_function_resumes_exactly(name, kind):
    """From every step, two sources whose epochs of 11 and 7 records roll over."""
    assert_exact_resume(lambda: MergedDataset([kind("a", 11, 2, **FUNCTIONS[name]), kind("b", 7)], seed=3))


@pytest.mark.each_value
@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_finite_stream_resumes_exactly_to_its_end(name, stop):
    """The end of the stream, with what a function gives at its end, comes at the same step."""
    assert_exact_resume(
        lambda: MergedDataset([Numbers("a", 13, 2, **FUNCTIONS[name]), Numbers("b", 9)], cyclic=False, stop=stop),
        steps=40,
        beyond=40,
    )


@pytest.mark.parametrize(
    ("name", "num_workers", "batch_size"),
    [("plain", 1, 3), ("plain", 3, 2), ("irregular_stream", 2, 1), ("packer", 2, 3), ("packer", 3, 2)],
)
def test_resume_is_exact_with_workers(name, num_workers, batch_size):
    """Batches of several workers, taken in turns, go on with the worker whose turn it is."""
    assert_exact_resume(
        lambda: MergedDataset([Numbers("a", 41, 2, **FUNCTIONS[name]), Numbers("b", 10), Numbers("c", 1)], seed=1),
        num_workers=num_workers,
        batch_size=batch_size,
    )


NESTED = [
    (*cyclic, stop)
    # Of the top, the mixture in it, and the mixture in that.
    for cyclic in ((True, True, True), (False, True, True), (False, False, True), (False, False, False))
    for stop in ("first_exhausted", "all_exhausted")
    if stop == "first_exhausted" or len(set(cyclic)) == 1  # else it would never end, and is refused
]


@pytest.mark.parametrize(
    ("outer_cyclic", "inner_cyclic", "deepest_cyclic", "stop", "num_workers"),
    [(*case, num_workers) for case, num_workers in zip(NESTED, cycle([0, 3, 3, 0]), strict=False)],
)
def test_nested_mixtures_resume_exactly(outer_cyclic, inner_cyclic, deepest_cyclic, stop, num_workers):
    """Each node has its own clock and its own entry."""

    def make():
        deepest = MergedDataset([Numbers("d", 5, 2), Numbers("e", 3)], cyclic=deepest_cyclic, stop=stop, seed=5)
        deepest.name, deepest.percent = "deepest", 1
        inner = MergedDataset(
            [Numbers("a", 7, 3, process_fn=Packer()), deepest, Numbers("b", 4)], cyclic=inner_cyclic, stop=stop
        )
        inner.name, inner.percent = "inner", 2
        return MergedDataset([inner, Numbers("c", 30)], cyclic=outer_cyclic, stop=stop, seed=9)

    assert_exact_resume(make, steps=30, beyond=30, num_workers=num_workers)


def pairs(samples):
    for first in samples:
        second = next(samples, None)
        if second is not None and (first.get("value", 0) + second.get("value", 0)) % 5 == 0:
            continue
        yield {"joined": [first.get("value"), second and second.get("value")]}
        if first.get("value", 0) % 2:
            yield {"echo": first.get("value")}


@pytest.mark.parametrize(
    ("num_workers", "cyclic", "function"),
    [(0, True, pairs), (2, False, pairs), (2, True, Packer()), (0, False, Packer())],
)
def test_a_yield_function_resumes_exactly(num_workers, cyclic, function):
    """Several samples to one, some dropped, some echoed, over the merged stream of plain and processed sources."""

    def make():
        sources = [Numbers("a", 31, 2), Numbers("b", 10, single_process_fn=odd_only), NumbersAhead("c", 12)]
        return MergedDataset(sources, cyclic=cyclic, stop="all_exhausted", customized_yield_fn=function)

    assert_exact_resume(make, steps=30, beyond=30, num_workers=num_workers)


@pytest.mark.each_value
@pytest.mark.parametrize("outer", [None, pairs])
@pytest.mark.parametrize("cyclic", [True, False])
def test_a_yield_function_of_an_inner_mixture_resumes_exactly(outer, cyclic):
    """Below another mixture, with or without a yield function of its own."""

    def make():
        inner = MergedDataset(
            [Numbers("a", 9, 2), Numbers("b", 4)], cyclic=cyclic, stop="all_exhausted", customized_yield_fn=pairs
        )
        inner.name, inner.percent = "inner", 1
        return MergedDataset([inner, Numbers("c", 30)], cyclic=cyclic, customized_yield_fn=outer)

    assert_exact_resume(make, steps=36)


def test_a_yield_function_of_a_finite_mixture_over_an_endless_one_resumes_exactly():
    """Of the endless one it may hold samples when the finite ones end."""

    def make():
        endless = MergedDataset([Numbers("a", 4), Numbers("b", 3)], name="endless", percent=1)
        inner = MergedDataset(
            [endless, Numbers("c", 30)], cyclic=False, customized_yield_fn=pairs, name="inner", percent=1
        )
        return MergedDataset([inner, Numbers("d", 50)], cyclic=False)

    assert_exact_resume(make, steps=36)


def test_a_filter_before_a_packer_resumes_exactly():
    """While a burst is fed again, the packer holds nothing yet: that is no epoch without a sample."""

    def make():
        dataset = MergedDataset([Numbers("a", 4, single_process_fn=odd_only, process_fn=Packer())], seed=1)
        dataset.set_data_parallel(2, 1)
        return dataset

    assert_exact_resume(make, steps=14, beyond=4)


def unsteady(times):
    """A function that gives each record so many times."""

    def function(records):
        for record in records:
            yield from [record] * times

    return function


@pytest.mark.parametrize(("before", "after"), [(3, 2), (3, 1)])
@pytest.mark.parametrize("cyclic", [True, False])
def test_a_burst_that_is_not_what_it_was_is_refused(before, after, cyclic):
    """Outputs that were given are dropped on resume; a function that gives fewer would lose others."""

    def make(times):
        return MergedDataset([Numbers("a", 6, process_fn=unsteady(times))], cyclic=cyclic)

    states = to_state(list(islice(iter(make(before)), before)))
    with pytest.raises(StateError, match=f"source 'a': process_fn gave {after} outputs, not {before} as before"):
        next(make(after).__iter_from__(states))


def test_a_burst_that_gives_nothing_any_more_is_refused():
    """However far it would go on."""

    def make(function):
        return MergedDataset([Numbers("a", 6, process_fn=function)])

    states = to_state(list(islice(iter(make(unsteady(2))), 1)))
    with pytest.raises(SourceError, match=r"source 'a': a whole epoch \(number \d\)"):
        next(make(unsteady(0)).__iter_from__(states))


def test_an_epoch_that_gives_nothing_is_found_where_earlier_sizes_had_dropped_records():
    """A lane that has drawn nothing of the source since says what was dropped before: it stands at an epoch's start."""
    kept, states = set(range(1, 8)), {}

    def go(count, num_workers=2, weight=5):
        wanted = Numbers("a", 8, single_process_fn=lambda record: record if record["value"] in kept else None)
        dataset = resumed(lambda: MergedDataset([wanted, Numbers("b", 400, weight)]), states)
        for batch in islice(loaded(dataset, num_workers, 1), count):
            states.update(to_state(batch))

    go(31, 0, 4)
    assert (states["cursor/0/0/0/0/a"]["window"], states["cursor/0/0/0/0/a"]["dropped"]) == (8, 1)
    go(2, 2, 4)
    go(2)
    assert (states["cursor/2/0/0/0/a"]["draws"], states["cursor/2/0/0/0/a"]["dropped"]) == (0, 1)
    kept.clear()
    with pytest.raises(SourceError, match=r"source 'a': a whole epoch \(number 1\)"):
        go(60)


def test_a_record_that_is_not_what_it_was_is_refused():
    """The same for the samples of one record."""

    def make(times):
        return MergedDataset([Numbers("a", 6, single_process_fn=lambda record: [record] * times)])

    states = to_state(list(islice(iter(make(4)), 3)))
    with pytest.raises(StateError, match=r"gave 2 samples for index \d where it had given at least 3"):
        next(make(2).__iter_from__(states))


class Counting:
    """A stateful stream whose state is the very dict that it counts in, given and taken."""

    def __init__(self):
        self.counts = {"rewind": 0, "seen": {}}

    def state_dict(self):
        return self.counts

    def load_state_dict(self, state):
        self.counts = state

    def __call__(self, records):
        self.counts["seen"] = self.counts["seen"] or {"records": 0}
        for record in records:
            self.counts["seen"]["records"] += 1
            yield {"value": record["value"], "seen": self.counts["seen"]["records"]}


def test_a_function_may_give_and_keep_the_dict_that_it_works_in():
    """The checkpoint is a copy: what the function counts on does not change it."""

    def make():
        return MergedDataset([Numbers("a", 7, process_fn=Counting())])

    assert_exact_resume(make)
    states = {}
    for sample in islice(make(), 5):
        states.update(to_state(sample))
    first, second = (resumed(make, states) for _ in range(2))
    assert [sample["seen"] for sample in islice(first, 3)] == [sample["seen"] for sample in islice(second, 3)]


def test_what_a_stream_function_passes_over_is_not_kept():
    """A filter that gives almost nothing costs no memory for what it passes over."""

    def rare(records):
        for record in records:
            if record["value"] % 50_000 == 7:
                yield record

    iterator = iter(MergedDataset([Numbers("a", 200_000, process_fn=rare)], shuffle_unstreaming_subsets=False))
    next(iterator)
    tracemalloc.start()
    next(iterator)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 500_000
