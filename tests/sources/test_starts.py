"""Each start of a stream function begins with nothing that an earlier one held."""

import functools
import gc
import logging
import pickle
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from itertools import islice

import pytest

from streamdata import MergedDataset
from streamdata.sources.functions import starts
from streamdata.sources.functions.starts import fresh
from tests.streams import Numbers, assert_exact_resume, in_lane, plain


class InThrees:
    """Joins three records to a row, and leaves what it has begun in a list that was made in its constructor."""

    def __init__(self):
        self.held = []

    def __call__(self, records):
        for record in records:
            self.held.append(record["value"])
            if len(self.held) == 3:
                yield {"row": list(self.held)}
                self.held.clear()


class Nested(InThrees):
    """The same, in a deque in a dict in a tuple."""

    def __init__(self):
        self.state = ({"held": deque(maxlen=9)}, "name")

    held = property(lambda self: self.state[0]["held"])


class Slotted:
    """The same, in a slot, with a private name."""

    __slots__ = ("__held",)
    __call__ = InThrees.__call__

    def __init__(self):
        self.__held = []

    held = property(lambda self: self.__held)


@dataclass(frozen=True)
class Frozen(InThrees):
    """The same, in a frozen dataclass."""

    held: list = field(default_factory=list)


class Dispatching(InThrees):
    """The same, by a method that it keeps, bound, in a table."""

    def __init__(self):
        super().__init__()
        self.table = {"value": self.hold, "row": functools.partial(self.rows, 3)}

    def hold(self, value):
        self.held.append(value)

    def rows(self, size):
        if len(self.held) == size:
            yield {"row": list(self.held)}
            self.held.clear()

    def __call__(self, records):
        for record in records:
            self.table["value"](record["value"])
            yield from self.table["row"]()


class Packer:
    """The same, stateful: what it holds at the end of a burst is told."""

    def __init__(self):
        self.held = []

    def __call__(self, records):
        for record in records:
            if len(self.held) == 3:
                yield {"row": self.held}
                self.held = []
            self.held.append(record["value"])

    def state_dict(self):
        return {"rewind": len(self.held)}

    def load_state_dict(self, state):
        self.held = []


def into(held, records):
    """The same, in a list that it is given."""
    for record in records:
        held.append(record["value"])
        if len(held) == 3:
            yield {"row": list(held)}
            held.clear()


FUNCTIONS = {
    "list": InThrees,
    "nested": Nested,
    "slot": Slotted,
    "frozen": Frozen,
    "dispatching": Dispatching,
    "stateful": Packer,
    "method": lambda: InThrees().__call__,
    "partial": lambda: functools.partial(into, []),
    "partial of an object": lambda: functools.partial(InThrees()),
}


def merged(function, *, over_all=False, size=11, **options):
    """The numbers in order through that function: of a source, or over all sources."""
    if over_all:
        options["customized_yield_fn"] = function
    else:
        options["shuffle_unstreaming_subsets"] = False
    return MergedDataset([Numbers("a", size, **({} if over_all else {"process_fn": function}))], **options)


def anew(dataset):
    """The same, to be iterated from the beginning of the same pass."""
    dataset.set_epoch(0)
    return dataset


@pytest.mark.parametrize("over_all", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_iteration_that_was_left_leaves_nothing_to_the_next(name, over_all):
    """Whether it was left early, or at the end of a finite stream whose last records fill no row."""
    dataset = merged(FUNCTIONS[name](), over_all=over_all, cyclic=False)
    whole = [plain(sample) for sample in dataset]
    assert [len(sample["row"]) for sample in whole] == [3, 3, 3]
    for stop in (1, 9, 2, 9):
        assert [plain(sample) for sample in islice(anew(dataset), stop)] == whole[:stop]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_lanes_in_one_process_share_nothing(name):
    """Iterated side by side, each gives what it gives alone."""
    dataset = merged(FUNCTIONS[name](), size=90)
    alone = [[plain(sample) for sample in islice(in_lane(anew(dataset), lane, 2), 9)] for lane in (0, 1)]
    side_by_side = zip(*(islice(in_lane(anew(dataset), lane, 2), 9) for lane in (0, 1)), strict=True)
    assert [[plain(sample) for sample in lane] for lane in zip(*side_by_side, strict=True)] == alone


def test_a_function_that_failed_is_called_anew_without_what_it_held(caplog):
    """The records in hand are counted as lost, and are not in a later row."""

    class Failing(InThrees):
        def __call__(self, records):
            for sample in super().__call__(failing_at_four(records)):
                yield {"row": sample["row"]}

    def failing_at_four(records):
        for record in records:
            if record["value"] == 4:
                raise KeyError("four")
            yield record

    source = Numbers("a", 11, process_fn=Failing(), max_bad=1)
    with caplog.at_level(logging.WARNING, "streamdata"):
        samples = list(MergedDataset([source], cyclic=False, shuffle_unstreaming_subsets=False))
    assert [sample["row"] for sample in samples] == [[0, 1, 2], [5, 6, 7], [8, 9, 10]]
    assert "with 2 records in hand" in caplog.text


@pytest.mark.parametrize("over_all", [False, True])
def test_a_packer_with_a_list_from_its_constructor_resumes_exactly(over_all):
    """One function for all iterations, left at every step."""
    function = Packer()
    assert_exact_resume(lambda: merged(function, over_all=over_all))


class Tokenizer:
    """Too large to copy, or what cannot be."""

    def __reduce__(self):
        raise TypeError("cannot be copied")

    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")


Pair = namedtuple("Pair", ["ids", "name"])  # noqa: PYI024  as users write it


def test_collections_are_copied_at_any_depth_and_keep_their_kind():
    """Also one that is held twice, or holds itself."""
    function = InThrees()
    function.counts, function.lists = Counter("aab"), defaultdict(list, a=[1])
    function.last, function.order = deque([[1]], maxlen=3), OrderedDict(b=1, a={2})
    function.pair, function.twice = Pair([1], "x"), [function.held, function.held]
    function.held.append(function.held)
    copy = fresh(function, "it")
    for name in ("counts", "lists", "last", "order"):
        one, other = vars(function)[name], vars(copy)[name]
        assert (type(one), one) == (type(other), other)
        assert one is not other
    assert copy.lists["a"] is not function.lists["a"]
    assert (copy.lists["new"], copy.last.maxlen, copy.last[0] is function.last[0]) == ([], 3, False)
    assert (copy.order["a"] is function.order["a"], type(copy.pair), copy.pair.ids is function.pair.ids) == (
        False,
        Pair,
        False,
    )
    assert copy.twice[0] is copy.twice[1] is copy.held is copy.held[0] is not function.held


def test_all_other_objects_are_shared():
    """A tokenizer is neither copied nor pickled; neither is what cannot be looked into."""
    function, tokenizer = InThrees(), Tokenizer()
    function.tokenizer, function.by_name, function.constant = tokenizer, {"a": [tokenizer]}, ("x", tokenizer)
    function.records, function.split, function.type = iter(()), "a b".split, Tokenizer
    copy = fresh(function, "it")
    assert copy.tokenizer is copy.by_name["a"][0] is tokenizer
    for name in ("constant", "records", "split", "type"):
        assert getattr(copy, name) is getattr(function, name)
    assert fresh(into, "it") is into
    assert fresh(Tokenizer, "it") is Tokenizer


class Unpicklable(InThrees):
    """Leaves its tokenizer out of its pickles, and can only be forked."""

    def __init__(self):
        super().__init__()
        self.tokenizer = Tokenizer()

    def __getstate__(self):
        raise TypeError("not to be pickled")


def test_what_a_class_leaves_out_of_its_pickles_is_shared_too():
    """A start is no pickling: nothing is made anew, and nothing lacks."""
    function = Unpicklable()
    twin = fresh(function, "function")
    assert type(twin) is Unpicklable
    assert twin.tokenizer is function.tokenizer
    assert twin.held is not function.held


class Shared:
    """An object that collects records."""

    def __init__(self):
        self.held = []


class Keeper(Packer):
    """A packer that holds its records in such an object."""

    def __init__(self):
        self.shared = Shared()

    @property
    def held(self):
        return self.shared.held

    @held.setter
    def held(self, value):
        self.shared.held = value


@pytest.mark.parametrize("over_all", [False, True])
def test_a_stateful_function_that_kept_records_is_refused(over_all):
    """At its second start, whoever makes it, also with states; the remedy is named."""
    function = Keeper()
    dataset = merged(function, over_all=over_all)
    next(iter(dataset))
    who = "source 'the top': customized_yield_fn" if over_all else "source 'a': process_fn"
    says = r"says at a start that it holds \{'rewind': 3\}, expected \{'rewind': 0\}\n.*\n  __call__; lists, dicts"
    for stream in (anew(dataset), merged(function, over_all=over_all), in_lane(dataset, 1, 2)):
        with pytest.raises(ValueError, match=f"{who} {says}"):
            next(iter(stream))


def test_a_stateful_function_is_refused_for_whatever_it_says_otherwise():
    """It need not be records: a sum goes wrong as well."""
    totals = {"all": 0}

    class Total(Packer):
        def state_dict(self):
            return {"rewind": 0, "total": totals["all"], "nan": float("nan")}

    function = Total()
    assert fresh(function, "it") is not fresh(function, "it")
    totals["all"] = 5
    with pytest.raises(ValueError, match=r"it says at a start that it holds \{'rewind': 0, 'total': 5, .*, expected "):
        fresh(function, "it")


def test_a_function_that_was_sent_to_a_worker_with_records_is_refused():
    """There it starts for the first time, and says that it holds some."""
    function = Keeper()
    next(iter(merged(function)))
    with pytest.raises(ValueError, match=r"holds \{'rewind': 3\}, expected no records"):
        fresh(pickle.loads(pickle.dumps(function)), "it")


def test_a_function_that_cannot_tell_before_it_is_called_starts_as_often_as_it_likes():
    """It makes what it holds in `__call__`."""

    class Later(Packer):
        def __init__(self):
            pass

        def __call__(self, records):
            self.held = []
            return super().__call__(records)

    dataset = merged(Later())
    assert [[plain(sample) for sample in islice(anew(dataset), 2)] for _ in range(2)] == [
        [plain(sample) for sample in islice(anew(dataset), 2)]
    ] * 2


class SlottedPacker:
    """One that cannot be weakly referenced."""

    __slots__ = ("held",)
    __init__, __call__ = Packer.__init__, Packer.__call__
    state_dict, load_state_dict = Packer.state_dict, Packer.load_state_dict


@pytest.mark.parametrize(("kind", "is_kept"), [(Packer, False), (SlottedPacker, True)])
def test_what_a_function_said_is_never_taken_for_what_another_did(kind, is_kept):
    """Which may come to lie at its place in memory: it is forgotten with the function, or both are kept."""
    function = kind()
    place = id(function)
    fresh(function, "it")
    assert place in starts._first_states
    del function
    gc.collect()
    assert (place in starts._first_states) == is_kept
    assert any(id(kept) == place for kept in starts._kept) == is_kept
