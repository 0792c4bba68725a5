"""Saving and loading: what was open comes first and again, what was settled never, all else as if nothing had been."""

import gzip
import json
import time
from base64 import b64encode
from itertools import islice

import pytest

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    PromptLedger,
    StaleAttempt,
    StateError,
    record_rng,
    to_state,
)
from tests.ledger.conftest import endless, prompts_of
from tests.ledger.test_ledger import SETTLEMENTS, Breaking, each_settlement, ids, places
from tests.streams import Numbers, plain, through_json


def restored(state, make=prompts_of, **settings):
    """A new ledger that goes on from a state."""
    ledger = PromptLedger(make(), **settings)
    ledger.load_state_dict(through_json(state))
    return ledger


def test_what_was_open_is_given_first():
    """In the order in which it was taken, with the next attempt, the same sample and another id; counted."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(5)
    ledger.retry(ids(first[:1]))
    again = ledger.take(1)
    ledger.done(ids(first[2:3]))
    opened = [first[1], first[3], first[4], again[0]]
    later = restored(ledger.state_dict())
    back = later.take(4)
    assert places(back) == places(opened)
    assert [plain(prompt.sample) for prompt in back] == [plain(prompt.sample) for prompt in opened]
    assert [prompt.attempt for prompt in back] == [2, 2, 2, 3]
    assert not set(ids(back)) & set(ids(first))
    assert later.stats()["again"] == 4
    assert later.stats()["taken"] == 5


def test_what_was_settled_never_comes_again():
    """Nor is anything lost: what is left of the stream follows."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(6)
    ledger.done(ids(first[:2]))
    ledger.drop(ids(first[2:3]), "equal")
    rest = restored(ledger.state_dict()).take(20)
    whole = [(sample["__datasetname__"], sample["__record__"][1:]) for sample in prompts_of()]
    assert places(rest) == whole[3:]


def test_what_was_settled_after_the_save_is_undone():
    """As the weights are that were trained on it."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(3)
    state = ledger.state_dict()
    ledger.done(ids(first))
    ledger.take(4)
    later = restored(state)
    assert places(later.take(3)) == places(first)
    assert later.stats()["done"] == 0


def test_a_ledger_loads_its_own_state():
    """In the same process: an earlier one's is where it goes back to."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(4)
    state = ledger.state_dict()
    later = ledger.take(5)
    ledger.load_state_dict(state)
    assert places(ledger.take(9)) == places(first + later)
    assert not ledger.finished


def test_retries_wait_for_what_is_left():
    """`after` counts prompts that are still to be taken, those that were open included."""
    ledger = PromptLedger(endless(("a", 50)))
    first = ledger.take(4)
    ledger.retry(ids(first[:1]), after=5)
    ledger.retry(ids(first[1:2]), after=3)
    ledger.take(1)
    later = restored(ledger.state_dict(), lambda: endless(("a", 50)))
    back = later.take(6)
    assert [prompt.attempt for prompt in back] == [2, 2, 2, 2, 2, 1]
    assert places(back)[:5] == places([first[2], first[3]]) + places(back)[2:3] + places([first[1], first[0]])
    assert later.stats()["again"] == 3


def test_what_was_due_stays_due_in_its_order():
    """After what was open; twice saved, too."""
    ledger = PromptLedger(endless(("a", 50)))
    first = ledger.take(4)
    ledger.retry(ids(first[2:3]))
    ledger.retry(ids(first[:1]))
    wanted = places([first[1], first[3], first[2], first[0]])
    state = restored(ledger.state_dict(), lambda: endless(("a", 50))).state_dict()
    later = restored(state, lambda: endless(("a", 50)))
    assert places(later.take(4)) == wanted
    assert later.stats()["again"] == 2


def test_each_load_gives_again_what_the_one_before_had_not_given():
    """What was open stays so over a load in which nobody took it; attempts are those that were taken."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(4)
    second = restored(ledger.state_dict())
    again = second.take(2)
    third = restored(second.state_dict())
    back = third.take(4)
    assert places(back) == places(first[2:] + first[:2])
    assert [prompt.attempt for prompt in back] == [2, 2, 3, 3]
    assert places(again) == places(first[:2])


def test_what_the_stream_gave_and_nobody_took_is_new():
    """A call whose last prompt could not be read has taken none."""
    source = Breaking("a", 9)
    ledger = PromptLedger(MergedDataset([source], cyclic=False, seed=3))
    with pytest.raises(OSError, match="no record"):
        ledger.take(9)
    later = restored(ledger.state_dict(), lambda: MergedDataset([Numbers("a", 9)], cyclic=False, seed=3))
    taken = later.take(9)
    assert [prompt.sample["value"] for prompt in taken] == [sample["value"] for sample in prompts_of((("a", 9),))]
    assert {prompt.attempt for prompt in taken} == {1}
    assert (later.stats()["again"], later.stats()["taken"]) == (0, 9)


def test_the_end_of_the_stream_is_kept():
    """Whether it was seen or not: the next pass does not begin."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(9)
    later = restored(ledger.state_dict())
    back = later.take(20)
    assert places(back) == places(first)
    later.done(ids(back))
    assert later.finished
    assert restored(later.state_dict()).take(1) == []


def test_a_state_of_nothing_is_a_beginning():
    """Before anything was taken."""
    whole = places(PromptLedger(prompts_of()).take(20))
    assert places(restored(PromptLedger(prompts_of()).state_dict()).take(20)) == whole


def test_it_goes_on_from_states_of_a_loader():
    """Those that were set before it began."""
    states = {}
    for sample in islice(prompts_of(), 4):
        states.update(to_state(sample))
    dataset = prompts_of()
    dataset.set_dataloader_states(states)
    ledger = PromptLedger(dataset)
    assert len(restored(ledger.state_dict()).take(20)) == 5
    assert len(ledger.take(20)) == 5


def test_ids_of_a_load_begin_with_its_number(clock):
    """The seconds since 1970, or one more than the saved one's: no two loads have the same."""
    clock.date = 1_800_000_000.9
    ledger = PromptLedger(prompts_of())
    assert ids(ledger.take(2)) == [1_800_000_000 << 32, (1_800_000_000 << 32) + 1]
    assert ids(restored(ledger.state_dict()).take(1)) == [1_800_000_001 << 32]
    clock.date = 1_700_000_000.0
    assert ids(restored(ledger.state_dict()).take(1)) == [1_800_000_001 << 32]
    clock.date = 1_800_000_009.0
    later = restored(ledger.state_dict())
    assert ids(later.take(1)) == [1_800_000_009 << 32] < [2**63]


@pytest.mark.parametrize("name", [*SETTLEMENTS, "score"])
def test_ids_of_another_load_are_stale(name):
    """Settled, open or waiting; of before, and of another restore."""
    settle = SETTLEMENTS.get(name, lambda ledger, ids: ledger.score(ids, [0.5] * len(ids)))
    ledger = PromptLedger(prompts_of())
    first = ledger.take(4)
    ledger.done(ids(first[:1]))
    ledger.retry(ids(first[1:2]))
    later = restored(ledger.state_dict())
    later.take(4)
    before = later.state_dict()
    for prompt in first:
        for named in (prompt.id, (prompt.id, 1), (prompt.id, 2)):
            with pytest.raises(StaleAttempt, match=f"prompt {prompt.id}: it is of before a load, or of another ledger"):
                settle(later, [named])
    assert later.state_dict() == before


def test_scores_are_kept():
    """With their epochs: what is left out stays so."""
    make = lambda: endless(("a", 4), ("b", 2))  # noqa: E731
    ledger = PromptLedger(make(), drop_at=(0.0, 1.0))
    first = ledger.take(6)
    ledger.score(ids(first), [0.0, 1.0, 0.1, 0.2, 0.3, 1.0])
    ledger.done(ids(first))
    later = restored(ledger.state_dict(), make, drop_at=(0.0, 1.0))
    wanted = ledger.take(12)
    assert places(wanted) == places(later.take(12))
    assert later.stats()["left_out"] == ledger.stats()["left_out"] > 0
    assert later.state_dict()["ledger"]["scores"] == ledger.state_dict()["ledger"]["scores"]


def test_a_state_is_small_plain_json():
    """At most 100 bytes for each open prompt; it changes nothing, and is not changed later."""
    ledger = PromptLedger(MergedDataset([Numbers("ab" * 50, 3), Numbers("b", 10**9)], seed=3))
    few = ledger.take(10)
    small = ledger.state_dict()
    text = json.dumps(small)
    ledger.take(2000)
    ledger.done(ids(few))
    assert json.dumps(small) == text
    assert len(json.dumps(ledger.state_dict())) - len(text) < 100 * 2000
    assert through_json(small) == small


def test_many_scores_and_prompts_are_saved_and_loaded_quickly():
    """A hundredth of what `python -m tests.benchmarks ledger` measures: 10^4 scores, and 100 prompts that are open."""
    ledger = PromptLedger(MergedDataset([Numbers("a", 10**9)]))
    taken = ledger.take(10**4)
    ledger.score(ids(taken), [0.5] * 10**4)
    ledger.done(ids(taken[100:]))
    begin = time.process_time()
    text = json.dumps(ledger.state_dict())
    PromptLedger(MergedDataset([Numbers("a", 10**9)])).load_state_dict(json.loads(text))
    assert time.process_time() - begin < 0.2


def test_a_source_that_joins_moves_nothing():
    """Places name their source, not its number."""
    ledger = PromptLedger(endless(("m", 6), ("z", 3)))
    first = ledger.take(5)
    ledger.score(ids(first), [0.5] * 5)
    later = restored(ledger.state_dict(), lambda: endless(("a", 2), ("m", 6), ("z", 3)))
    back = later.take(5)
    assert places(back) == places(first)
    assert [prompt.score for prompt in back] == [0.5] * 5
    assert {prompt.source for prompt in later.take(9)} == {"a", "m", "z"}


def test_a_source_of_open_prompts_may_not_leave():
    """One that gives no new ones may stay for them."""
    ledger = PromptLedger(endless(("a", 6), ("b", 3)))
    first = ledger.take(5)
    state = ledger.state_dict()
    with pytest.raises(StateError, match=r"got a dataset without b\n  Keep a source until its prompts are settled"):
        restored(state, lambda: endless(("a", 6)))
    later = restored(
        state, lambda: MergedDataset([Numbers("a", 6), Numbers("b", 3, percent=0.0)], seed=3, stop="all_exhausted")
    )
    assert places(later.take(5)) == places(first)
    assert {prompt.source for prompt in later.take(9)} == {"a"}


def test_another_dataset_is_refused_and_the_ledger_is_as_it_was():
    """By the states of the stream."""
    state = PromptLedger(prompts_of())
    state.take(3)
    ledger = PromptLedger(prompts_of(seed=4))
    first = ledger.take(2)
    with pytest.raises(StateError, match="seed"):
        ledger.load_state_dict(state.state_dict())
    ledger.done(ids(first))
    assert len(ledger.take(20)) == 7


def damaged(state, *path, value=None):
    """A state with another value at a place, or without it."""
    changed = through_json(state)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner.pop(path[-1])
    if value is not None:
        inner[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("ledger",), None),
        (("stream",), None),
        (("stream",), 3),
        (("ledger", "load"), None),
        (("ledger", "load"), "x"),
        (("ledger", "ended"), None),
        (("ledger", "counts"), None),
        (("ledger", "counts"), 5),
        (("ledger", "sources"), ["a"]),
        (("ledger", "prompts"), [[0, 0]]),
        (("ledger", "prompts"), 3),
        (("ledger", "scores"), None),
        (("ledger", "scores"), {"a": {}}),
        (("ledger", "scores"), {"a": ["?", "", ""]}),
        (("ledger", "scores"), {"a": ["", ""]}),
        (("ledger", "scores"), {"a": [b64encode(bytes(8)).decode(), "", ""]}),
        (("ledger", "scores"), 3),
    ],
)
def test_what_is_no_state_is_refused(path, value):
    """And the ledger goes on as it was."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(5)
    state = ledger.state_dict()
    for bad in (damaged(state, *path, value=value), None, {}, 3):
        with pytest.raises(StateError):
            ledger.load_state_dict(bad)
    ledger.done(ids(first))
    assert len(ledger.take(20)) == 4


def test_prompts_of_several_passes_are_read_again_in_theirs():
    """What was open of one pass comes with its sample, also where new ones are of the next."""
    first_pass = prompts_of()
    first_pass.set_epoch(0)
    ledger = PromptLedger(first_pass)
    first = ledger.take(3)
    dataset = prompts_of()
    dataset.set_epoch(1)
    later = PromptLedger(dataset)
    later.load_state_dict(ledger.state_dict())
    back = later.take(20)
    assert places(back[:3]) == places(first)
    assert [plain(prompt.sample) for prompt in back[:3]] == [plain(prompt.sample) for prompt in first]
    assert [prompt.epoch_pass for prompt in back] == [0] * 3 + [1] * 9


# Leases


def test_a_lease_that_runs_out_puts_the_prompt_in_front(clock):
    """With the same id and the next attempt, before retries; the settlement of the slow one is stale."""
    ledger = PromptLedger(endless(("a", 50)))
    first = ledger.take(3, lease_s=10)
    other = ledger.take(1)
    ledger.retry(ids(other))
    clock.now += 10
    back = ledger.take(4)
    assert ids(back) == ids(first + other)
    assert [prompt.attempt for prompt in back] == [2] * 4
    with pytest.raises(StaleAttempt, match="attempt 1 is over: 2 is open now"):
        ledger.done([(first[0].id, 1)])
    ledger.done([(first[0].id, 2)])


@each_settlement
def test_a_settlement_after_the_lease_is_stale(clock, settle):
    """Also where nobody has asked for a prompt since."""
    ledger = PromptLedger(endless(("a", 50)))
    (prompt,) = ledger.take(1, lease_s=10)
    clock.now += 10
    with pytest.raises(StaleAttempt, match="it is settled, or to be taken again"):
        settle(ledger, [prompt[:2]])
    assert ids(ledger.take(1)) == [prompt.id]


def test_a_lease_is_renewed_for_as_long_as_it_was(clock):
    """Each prompt's for its own."""
    ledger = PromptLedger(endless(("a", 50)))
    short, long, none = ledger.take(1, lease_s=10), ledger.take(1, lease_s=20), ledger.take(1)
    clock.now += 9
    ledger.renew(ids(short + long + none))
    clock.now += 9
    assert ledger.stats()["due"] == 0
    clock.now += 1
    assert ids(ledger.take(1)) == ids(short)
    clock.now += 9
    assert ledger.stats()["due"] == 0
    clock.now += 1
    assert ids(ledger.take(1)) == ids(long)


def test_what_is_kept_has_no_lease(clock):
    """It is open until it is settled; renewing changes nothing."""
    ledger = PromptLedger(endless(("a", 50)))
    first = ledger.take(2, lease_s=10)
    ledger.keep(ids(first))
    ledger.renew(ids(first[:1]))
    clock.now += 1e9
    assert ledger.stats()["open"] == 2
    ledger.done(ids(first))


def test_a_lease_is_of_an_attempt(clock):
    """The next one has its own, or none."""
    ledger = PromptLedger(endless(("a", 50)))
    (first,) = ledger.take(1, lease_s=10)
    ledger.retry([first.id])
    ledger.take(1)
    clock.now += 100
    ledger.done([first.id])


def test_a_load_ends_leases(clock):
    """What was open, or had run out, is given again."""
    ledger = PromptLedger(endless(("a", 50)))
    first = ledger.take(1, lease_s=10)
    clock.now += 10
    second = ledger.take(2, lease_s=10)[1:]
    later = restored(ledger.state_dict(), lambda: endless(("a", 50)))
    back = later.take(2)
    assert places(back) == places(first + second)
    clock.now += 100
    later.done(ids(back))


def test_a_lease_that_ran_out_is_no_open_prompt_in_a_state(clock):
    """It is due, behind what is open, and not counted as given again after a load."""
    ledger = PromptLedger(endless(("a", 50)))
    first, second = ledger.take(1, lease_s=10), ledger.take(1)
    clock.now += 10
    later = restored(ledger.state_dict(), lambda: endless(("a", 50)))
    assert places(later.take(2)) == places(second + first)
    assert later.stats()["again"] == 1


@pytest.mark.parametrize("lease_s", [0, -1, float("nan"), "10", True, None])
def test_a_lease_is_a_time(lease_s):
    """In seconds, above 0."""
    with pytest.raises(ValueError, match=r"PromptLedger\.take: expected lease_s to be seconds above 0"):
        PromptLedger(prompts_of()).take(1, lease_s=lease_s)


# The stream


def test_the_stream_stands_where_to_state_says():
    """As if a trainer had collected the states of each sample that was taken; after a load, too."""
    ledger, states, stream = PromptLedger(endless(("a", 6), ("b", 3))), {}, iter(endless(("a", 6), ("b", 3)))
    for _ in range(3):
        ledger.done(ids(ledger.take(7)))
        for sample in islice(stream, 7):
            states.update(to_state(sample))
        assert ledger.state_dict()["stream"] == through_json(states)
        ledger = restored(ledger.state_dict(), lambda: endless(("a", 6), ("b", 3)))
        assert ledger.state_dict()["stream"] == through_json(states)


def noisy(record):
    """Two samples of a record, with random numbers of its own."""
    return [{"text": record["text"], "noise": record_rng(record).random()} for _ in range(2)]


def test_prompts_of_files_have_their_samples_after_a_load(tmp_path):
    """Of shards that are read from their start too, in a later epoch, through a function that draws random numbers."""
    for shard in range(2):
        rows = "".join(json.dumps({"text": f"{shard}.{row}"}) + "\n" for row in range(5))
        (tmp_path / f"{shard}.jsonl.gz").write_bytes(gzip.compress(rows.encode()))

    def make():
        source = JsonlIterableDataset(str(tmp_path / "*.jsonl.gz"))
        source.name, source.percent, source.single_process_fn = "files", 1.0, noisy
        return MergedDataset([source], seed=2)

    ledger = PromptLedger(make())
    ledger.done(ids(ledger.take(25)))
    opened = ledger.take(8)
    back = restored(ledger.state_dict(), make).take(8)
    assert [plain(prompt.sample) for prompt in back] == [plain(prompt.sample) for prompt in opened]
    assert {prompt.record_id[2] for prompt in back} == {0, 1}


def test_the_number_of_ranks_changes_nothing(monkeypatch):
    """A ledger reads all of the stream, on whichever rank of however many it lives."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    ledger = PromptLedger(prompts_of())
    first = ledger.take(4)
    ledger.done(ids(first))
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    whole = [(sample["__datasetname__"], sample["__record__"][1:]) for sample in alone(prompts_of())]
    assert places(first) + places(restored(ledger.state_dict()).take(20)) == whole


def alone(dataset):
    """A stream that is not divided among ranks."""
    dataset.set_data_parallel(1, 0)
    return dataset
