"""Damaged numbers in states end in a StateError, whatever their size or depth."""

import copy
from itertools import islice, product

import pytest

from streamdata import MergedDataset, StateError, merge_states, to_state
from tests.mixing.test_resume import Packer, one_to_many
from tests.streams import Numbers, plain, resumed, signed, through_json


def make(cyclic=True):
    """Sources with all that a cursor can hold."""
    sources = [
        Numbers("a", 40, process_fn=Packer()),
        Numbers("b", 40, single_process_fn=one_to_many),
        Numbers("c", 40, records_per_block=4),
    ]
    return MergedDataset(sources, cyclic=cyclic, seed=3)


def deep(levels):
    """So many levels of dicts."""
    value: dict = {}
    for _ in range(levels):
        value = {"x": value}
    return value


FIELDS = ["draws", "clock", "epoch", "window", "taken", "output", "given", "dropped", "bad", "function"]
DAMAGED = {"huge": 10**400, "int64": 2**63, "negative": -1, "text": "1", "deep": deep(100_000), "nan": float("nan")}


@pytest.fixture(scope="module")
def states():
    """Of a run under way."""
    states = {}
    for sample in islice(make(), 31):
        states.update(to_state(sample))
    return through_json(states)


# A clock may be as high where a source is rare.
@pytest.mark.parametrize(("field", "damage"), [pair for pair in product(FIELDS, DAMAGED) if pair != ("clock", "int64")])
def test_a_damaged_field_of_a_cursor_is_refused(states, field, damage):
    """When it is loaded; none of it reaches NumPy or the stack."""
    for key in ("cursor/0/0/0/0/a", "cursor/0/0/0/0/b"):
        damaged = {**states, key: {**states[key], field: DAMAGED[damage]}}
        with pytest.raises(StateError, match=f"states: '{key}'"):
            make().set_dataloader_states(damaged)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("key", ["cursor/0/0/0/0/", "worker/0/0/0", "generation/0"])
def test_a_damaged_entry_is_refused(states, key, damage):
    """Of each other kind."""
    with pytest.raises(StateError, match="states: "):
        make().set_dataloader_states({**states, key: DAMAGED[damage]})


@pytest.mark.parametrize("value", [10**400, 0, -1.0, float("inf"), "1", None])
def test_a_damaged_header_is_refused(states, value):
    """Its topology and its weights."""
    for path in (["weights", "a"], ["dp_size"], ["num_workers"], ["format"]):
        damaged = copy.deepcopy(states)
        target = damaged["generation/0"]
        for name in path[:-1]:
            target = target[name]
        target[path[-1]] = value
        with pytest.raises(StateError):
            next(iter(resumed_from(damaged)))


@pytest.mark.parametrize(
    "weight", [[], [[0, -1]], [[5, 1], [5, 2]], {"steps": 1}, {"by": "tokens"}, [[0, 1, 2]], [["0", 1]]]
)
def test_a_damaged_schedule_in_a_header_is_refused(states, weight):
    """One that to_state could have written is not."""
    damaged = copy.deepcopy(states)
    damaged["generation/0"]["weights"]["a"] = weight
    with pytest.raises(StateError, match="generation/0"):
        resumed_from(damaged)
    damaged["generation/0"]["weights"]["a"] = {"steps": [[0, 1.5], [10, 0]]}
    next(iter(resumed_from({**damaged, "generation/0": signed(damaged["generation/0"])})))


@pytest.mark.parametrize("cost", [-1, float("inf"), "1", True])
def test_a_damaged_cost_is_refused(states, cost):
    """It is no count: any number that a sum of costs may be."""
    damaged = copy.deepcopy(states)
    damaged["cursor/0/0/0/0/a"]["cost"] = cost
    with pytest.raises(StateError, match="'cost'"):
        resumed_from(damaged)


@pytest.mark.parametrize(("name", "number"), [("num_workers", 2**52), ("dp_size", 2**31 - 1), ("dp_size", 2**17)])
def test_more_lanes_than_there_can_be_are_refused_at_once(name, number):
    """Each is looked for among the entries, which would take for ever, or all memory."""
    states = to_state(list(islice(make(), 3)))
    states["generation/0"] |= {"num_workers": 64, name: number}
    with pytest.raises(StateError, match="states: 'generation/0'"):
        make().set_dataloader_states(states)


@pytest.mark.parametrize(("place", "lane"), [(3, "rank 1, worker 0"), (4, "rank 0, worker 1")])
def test_an_entry_of_a_lane_that_there_was_not_is_refused(states, place, lane):
    """The first one after the last rank, or after its last worker."""
    parts = ["cursor", "0", "0", "0", "0", "a"]
    parts[place] = "1"
    with pytest.raises(StateError, match=f"an entry of {lane} in generation 0, which had dp_size=1 and num_workers=1"):
        make().set_dataloader_states({**states, "/".join(parts): states["cursor/0/0/0/0/a"]})


def resumed_from(states):
    """A dataset that goes on there."""
    dataset = make()
    dataset.set_dataloader_states(states)
    return dataset


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "-1", "9223372036854775808", "x", ""])
@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_a_damaged_key_is_refused(states, place, number):
    """Generation, pass, rank and worker."""
    parts = ["cursor", "0", "0", "0", "0", "a"]
    parts[place] = number
    with pytest.raises(StateError, match="states: "):
        make().set_dataloader_states({**states, "/".join(parts): states["cursor/0/0/0/0/a"]})


@pytest.mark.parametrize(
    ("key", "field", "value", "message"),
    [
        ("c", "taken", 4, "at record 4 of a block, expected at most 3"),
        ("c", "window", 11, "in window 11 of epoch 0, expected at most 10"),
        ("b", "taken", 1, "at record 1 of a block, expected at most 0"),
    ],
)
def test_a_place_where_there_is_nothing_is_refused(states, key, field, value, message):
    """It would pass over records, or begin the next epoch."""
    damaged = copy.deepcopy(states)
    damaged[f"cursor/0/0/0/0/{key}"].update({"epoch": 0, field: value})
    with pytest.raises(StateError, match=message):
        list(islice(resumed_from(damaged), 30))


def test_another_epoch_of_a_finite_stream_is_refused():
    """It would end at once."""

    def finite():
        return make(cyclic=False)

    damaged = to_state(list(islice(finite(), 9)))
    damaged["cursor/0/0/0/0/c"]["epoch"] = 1
    with pytest.raises(StateError, match="source 'c': states in epoch 1, expected 0"):
        list(resumed(finite, damaged))


@pytest.fixture(scope="module")
def resized():
    """Of a run that went on under another topology."""
    states: dict = {}
    for dp_size in (2, 1):
        dataset = resumed(make, states)
        dataset.set_data_parallel(dp_size, 0)
        for sample in islice(dataset, 31):
            states.update(to_state(sample))
    return states


def at(value, path):
    """What is there, below all these names."""
    for name in path:
        value = value[name]
    return value


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        (["passes", "0"], {"time": 1.0, "other": 2}),
        (["passes", "0", "left", "a", "stretches", "rows"], 2**50),
        (["passes", "0", "left", "a", "functions"], {"1": [{}, ""]}),
        (["sizes"], [7]),
        (["origin"], ""),
    ],
)
@pytest.mark.parametrize("call", [resumed_from, merge_states, lambda states: merge_states(states, states)])
def test_damage_to_what_is_said_of_earlier_sizes_is_refused(resized, path, damage, call):
    """Not an error of another type, wherever it is read first."""
    states = copy.deepcopy(resized)
    at(states["deal/1"], path[:-1])[path[-1]] = damage
    with pytest.raises(StateError, match="deal/1"):
        call(states)


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("name", ["number", "passes", "nodes", "origin"])
def test_a_damaged_field_of_a_deal_is_refused(resized, name, damage):
    """Whatever it is; what could be one by its type is not the one that was written."""
    with pytest.raises(StateError, match="deal/1"):
        resumed_from({**resized, "deal/1": {**resized["deal/1"], name: DAMAGED[damage]}})


@pytest.mark.parametrize(
    ("generation", "damaged"),
    [
        (1, {"deal": 6}),
        (2, {"deal": 0}),
        (2, {"deal": 2, "num_workers": 0}),
        (2, {"num_workers": 3}),
        (2, {"dp_size": 2}),
        (2, {"dealt": "00"}),
        (1, {"dealt": "00"}),
        (1, {"dp_size": 0}),
    ],
)
def test_headers_that_do_not_fit_together_are_refused(resized, generation, damaged):
    """All headers of a deal say the same of it."""
    other = signed({**resized["generation/1"], "weights": {"a": 1, "b": 1, "c": 2}})
    states = {**resized, "generation/2": other}
    resumed(make, states)
    key = f"generation/{generation}"
    header = {**states[key], **damaged}
    for damaged_header in (header, signed(header)) if damaged.keys() & {"dp_size", "dealt"} else (header,):
        with pytest.raises(StateError, match="states: 'generation/"):
            resumed(make, {**states, key: damaged_header})


@pytest.mark.parametrize("damage", [{"deal": 6}, {"deal": 10**400}, {"dealt": "00"}, {"deal": 0}])
@pytest.mark.parametrize("call", [resumed_from, merge_states, lambda states: merge_states(states, states)])
def test_a_header_of_another_deal_than_its_own_is_refused(resized, damage, call):
    """Also where it is the only one: the states would seem to be none, and all would come again."""
    states = {key: value for key, value in resized.items() if key == "deal/1" or key.split("/")[1] != "0"}
    resumed(make, states)
    with pytest.raises(StateError, match="states: "):
        call({**states, "generation/1": {**states["generation/1"], **damage}})


def test_a_header_that_names_what_was_before_and_no_deal_is_refused(resized):
    """It would be that of a run which never changed. No lane reads what was left over any more."""
    states = dict(resized)
    for sample in islice(resumed_from(resized), 80):
        states.update(to_state(sample))
    states = {key: value for key, value in states.items() if key.split("/")[1] != "0" and key != "deal/1"}
    with pytest.raises(StateError, match="states: "):
        resumed_from({**states, "generation/1": {**states["generation/1"], "deal": 0}})


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("call", [resumed_from, merge_states, lambda states: merge_states(states, states)])
def test_a_cut_into_nothing_is_refused(resized, number, call):
    """What is left over is computed by it: blocks in an epoch, and blocks in a window."""
    states = copy.deepcopy(resized)
    states["generation/1"]["cuts"]["a"][number] = 0
    with pytest.raises(StateError, match="generation/1"):
        call(states)


def test_entries_of_earlier_sizes_are_not_needed(resized):
    """The header of the deal says all. Where they are there and damaged, they are refused as any others."""
    want = plain(list(islice(resumed_from(resized), 20)))
    less = {key: value for key, value in resized.items() if key.split("/")[1] != "0"}
    assert "generation/0" in resized.keys() - less.keys()
    assert plain(list(islice(resumed_from(less), 20))) == want
    with pytest.raises(StateError, match="generation/0"):
        resumed_from({**resized, "generation/0": "damaged"})


@pytest.mark.parametrize("name", ["format", "dp_size", "deal", "dealt", "nodes", "weights", "cuts"])
def test_a_header_that_lacks_what_its_deal_began_with_is_refused(resized, name):
    """It would begin where a run begins, and deliver again what earlier sizes had delivered."""
    header = {key: value for key, value in resized["generation/1"].items() if key != name}
    with pytest.raises(StateError, match="generation/1"):
        resumed(make, {**resized, "generation/1": header})


@pytest.mark.parametrize("name", ["number", "first_pass", "passes", "cuts", "totals"])
def test_a_deal_that_lacks_a_field_is_refused(resized, name):
    """None of them has a value that it has by default."""
    deal = {key: value for key, value in resized["deal/1"].items() if key != name}
    with pytest.raises(StateError, match="deal/1"):
        resumed(make, {**resized, "deal/1": deal})


@pytest.mark.parametrize("call", [resumed_from, merge_states, lambda states: merge_states(states, states)])
def test_states_that_lack_what_was_before_are_refused(resized, call):
    """As of a trainer that missed the first batch after a resume."""
    with pytest.raises(StateError, match=r"deal/1, .*\n.*from the first batch"):
        call({key: value for key, value in resized.items() if key != "deal/1"})


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("call", [resumed_from, merge_states, lambda states: merge_states(states, states)])
def test_states_of_an_earlier_format_are_refused(states, number, call):
    """What they say of earlier sizes is said in another way; that version can still go on with them."""
    header = {**states["generation/0"], "format": number}
    with pytest.raises(StateError, match=f"expected format 4, got {number}: start anew, or .* version of streamdata"):
        call({**states, "generation/0": header})


@pytest.mark.parametrize("field", ["nodes", "weights"])
def test_a_header_in_which_a_node_has_no_weight_is_refused(resized, field):
    """Or a weight no node: the sources of then would seem to be others."""
    header = copy.deepcopy(resized["generation/1"])
    del header[field]["b"]
    with pytest.raises(StateError, match="generation/1"):
        resumed(make, {**resized, "generation/1": header})


@pytest.mark.parametrize("key", ["idle/99/0", "idle/0/7"])
@pytest.mark.parametrize("call", [resumed_from, merge_states, lambda states: merge_states(states, states)])
def test_a_rank_that_there_was_not_did_not_deliver_nothing(states, key, call):
    """Nor one of a generation that has no header."""
    with pytest.raises(StateError, match="states: "):
        call({**states, key: True})


@pytest.mark.parametrize("key", ["generation/0", "worker/0/0/0", "cursor/0/0/0/0/"])
@pytest.mark.parametrize("call", [resumed_from, merge_states, lambda states: merge_states(states, states)])
def test_another_spelling_of_a_number_in_a_key_is_refused(states, key, call):
    """Two keys would mean the same entry, and neither would be found by the other."""
    spelt = {key.replace("/0", "/00", 1) if name == key else name: value for name, value in states.items()}
    with pytest.raises(StateError, match="/00"):
        call(spelt)
