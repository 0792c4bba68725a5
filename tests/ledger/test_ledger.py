"""Taking and settling: which prompts come, in which order, and what is refused."""

import threading
from copy import deepcopy
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from streamdata import MergedDataset, PromptLedger, SourceError, StaleAttempt
from streamdata.ledger import ledger as module
from tests.ledger.conftest import endless, prompts_of
from tests.mixing.test_resume import Packer
from tests.streams import Numbers, plain

SETTLEMENTS = {
    "done": lambda ledger, ids: ledger.done(ids),
    "drop": lambda ledger, ids: ledger.drop(ids, "equal"),
    "retry": lambda ledger, ids: ledger.retry(ids),
    "renew": lambda ledger, ids: ledger.renew(ids),
    "keep": lambda ledger, ids: ledger.keep(ids),
}
each_settlement = pytest.mark.parametrize("settle", SETTLEMENTS.values(), ids=SETTLEMENTS)


def places(prompts):
    """Which records they are."""
    return [(prompt.source, prompt.record_id) for prompt in prompts]


def ids(prompts):
    """Their ids."""
    return [prompt.id for prompt in prompts]


def test_new_prompts_come_in_the_order_of_the_stream():
    """Their samples are the stream's, but for what tells of the iteration."""
    taken = PromptLedger(prompts_of()).take(20)
    assert [plain(prompt.sample) for prompt in taken] == [plain(sample) for sample in prompts_of()]
    assert all("__cursor__" not in prompt.sample for prompt in taken)


def test_a_prompt_says_what_it_is():
    """Source, record and pass as provenance has them; the first attempt is 1."""
    dataset = endless(("a", 6))
    dataset.set_epoch(4)
    (prompt,) = PromptLedger(dataset).take(1)
    assert (prompt.attempt, prompt.source, prompt.epoch_pass, prompt.score) == (1, "a", 4, None)
    assert (0, *prompt.record_id) == prompt.sample["__record__"]


def test_it_takes_no_more_of_the_stream_than_is_asked_for():
    """So its state is small, and a kill loses no reading."""
    asked = []

    class Seen(Numbers):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    ledger = PromptLedger(MergedDataset([Seen("a", 50)]))
    ledger.take(3)
    assert len(asked) == 3


def test_what_is_due_comes_before_what_is_new():
    """In the order in which they fell due; ties in the order of the calls."""
    ledger, stream = PromptLedger(endless(("a", 50))), list(islice(endless(("a", 50)), 10))
    first = ledger.take(4)
    ledger.retry(ids(first[2:3]))
    ledger.retry(ids(first[:1]))
    again = ledger.take(4)
    assert places(again)[:2] == places([first[2], first[0]])
    assert [prompt.attempt for prompt in again] == [2, 2, 1, 1]
    assert ids(again)[:2] == ids([first[2], first[0]])
    assert [prompt.sample["value"] for prompt in again[2:]] == [sample["value"] for sample in stream[4:6]]


def test_whether_a_retry_is_due_is_judged_prompt_by_prompt():
    """Within one call, too: after so many prompts were taken it comes next."""
    ledger = PromptLedger(endless(("a", 50)))
    first = ledger.take(3)
    ledger.retry(ids(first[:1]), after=4)
    ledger.retry(ids(first[1:2]), after=2)
    assert [prompt.attempt for prompt in ledger.take(7)] == [1, 1, 2, 1, 2, 1, 1]


def test_retries_come_in_the_order_in_which_they_fell_due():
    """A later call with a shorter wait may be first; one that fell due long ago is before one that does now."""
    ledger = PromptLedger(endless(("a", 50)))
    first = ledger.take(3)
    ledger.retry(ids(first[:1]), after=6)
    ledger.retry(ids(first[1:2]), after=3)
    ledger.take(3)
    ledger.retry(ids(first[2:]), after=0)
    assert ids(ledger.take(2)) == ids([first[1], first[2]])
    assert [prompt.id == first[0].id for prompt in ledger.take(2)] == [False, True]


def test_once_the_stream_has_ended_all_that_waits_is_due():
    """In the order of its due times; fewer than asked for come only when nothing waits."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(20)
    assert len(first) == 9
    ledger.retry(ids(first[:1]), after=70)
    ledger.retry(ids(first[1:3]), after=50)
    assert ids(ledger.take(2)) == ids(first[1:3])
    assert ids(ledger.take(5)) == ids(first[:1])
    assert ledger.take(5) == []


def test_finished_is_when_all_is_settled_and_the_stream_has_ended():
    """Neither while prompts are open, nor while one waits."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(8)
    ledger.done(ids(first))
    assert not ledger.finished
    last = ledger.take(1)
    assert not ledger.finished
    ledger.retry(ids(last), after=3)
    assert not ledger.finished
    ledger.drop(ids(ledger.take(1)), "equal")
    assert ledger.finished


def test_a_stream_without_prompts_is_finished_when_it_was_asked():
    """All of its records are skipped."""
    skip = [{"source": name, "index": index} for name, size in (("a", 6), ("b", 3)) for index in range(size)]
    ledger = PromptLedger(prompts_of(skip=skip))
    assert ledger.take(3) == []
    assert ledger.finished


@each_settlement
def test_prompts_are_named_by_id_or_with_their_attempt(settle):
    """Lists, tuples and arrays of ids, or pairs."""
    ledger = PromptLedger(endless(("a", 50)))
    for name in (lambda prompt: prompt.id, lambda prompt: prompt[:2], lambda prompt: list(prompt[:2])):
        settle(ledger, [name(prompt) for prompt in ledger.take(2)])
    settle(ledger, np.array(ids(ledger.take(2))))
    settle(ledger, iter(ids(ledger.take(2))))
    settle(ledger, [])


@each_settlement
def test_another_attempt_than_the_open_one_is_stale(settle):
    """One that was, and one that never was."""
    ledger = PromptLedger(endless(("a", 50)))
    (first,) = ledger.take(1)
    ledger.retry([first.id])
    (second,) = ledger.take(1)
    before = ledger.state_dict()
    for attempt in (1, 3, 0, -1):
        with pytest.raises(StaleAttempt, match=f"prompt {first.id}: attempt {attempt} is over: 2 is open now"):
            settle(ledger, [(first.id, attempt)])
    assert ledger.state_dict() == before
    settle(ledger, [(second.id, 2)])


@each_settlement
def test_what_waits_or_is_settled_is_stale(settle):
    """It is not open."""
    ledger = PromptLedger(endless(("a", 50)))
    done, dropped, waiting = ledger.take(3)
    ledger.done([done.id])
    ledger.drop([dropped.id], "equal")
    ledger.retry([waiting.id])
    before = ledger.state_dict()
    for prompt in (done, dropped, waiting):
        with pytest.raises(StaleAttempt, match=f"prompt {prompt.id}: it is settled, or to be taken again"):
            settle(ledger, [prompt.id])
    assert ledger.state_dict() == before


@each_settlement
def test_where_one_id_is_bad_nothing_of_the_call_is_done(settle):
    """Stale, unknown, of another load, twice, or none at all."""
    ledger = PromptLedger(endless(("a", 50)))
    first, second, third = ledger.take(3)
    ledger.done([second.id])
    before = ledger.state_dict()
    for bad, error in [
        (second.id, StaleAttempt),
        ((third.id, 2), StaleAttempt),
        (first.id + 7, ValueError),
        (first.id - (1 << 32), StaleAttempt),
        (-1, StaleAttempt),
        (1 << 80, StaleAttempt),
        (first.id, ValueError),
        ("7", ValueError),
        (1.0, ValueError),
        (None, ValueError),
        ((first.id, 1, 1), ValueError),
        (first, ValueError),
    ]:
        with pytest.raises(error, match="nothing of the call was done"):
            settle(ledger, [first.id, bad])
    assert ledger.state_dict() == before
    for bad in (first.id, None, "12"):
        with pytest.raises(ValueError, match="expected a list of ids, or of pairs of id and attempt"):
            settle(ledger, bad)


def test_an_id_that_was_never_taken_is_named():
    """So is one that is there twice."""
    ledger = PromptLedger(endless(("a", 50)))
    (prompt,) = ledger.take(1)
    with pytest.raises(
        ValueError, match=f"PromptLedger.done: expected ids of prompts that were taken, got {prompt.id + 1}"
    ):
        ledger.done([prompt.id + 1])
    with pytest.raises(ValueError, match=f"done: expected each id once, got {prompt.id}"):
        ledger.done([prompt.id, prompt.id])


@pytest.mark.parametrize("n", [0, -1, 1.0, "3", True, None])
def test_how_many_to_take_is_an_int(n):
    """From 1 on."""
    with pytest.raises(ValueError, match=r"PromptLedger\.take: expected n to be an int from 1 on"):
        PromptLedger(prompts_of()).take(n)


@pytest.mark.parametrize("reason", ["", "x" * 101, None, 3])
def test_a_reason_is_a_short_text(reason):
    """It is counted, not stored for each prompt."""
    ledger = PromptLedger(prompts_of())
    with pytest.raises(ValueError, match="expected a reason of 1 to 100 characters"):
        ledger.drop(ids(ledger.take(1)), reason)
    assert ledger.stats()["open"] == 1


@pytest.mark.parametrize("after", [-1, 1.5, "2", True, None])
def test_after_is_a_number_of_prompts(after):
    """From 0 on."""
    ledger = PromptLedger(prompts_of())
    with pytest.raises(ValueError, match="expected after to be an int from 0 on"):
        ledger.retry(ids(ledger.take(1)), after)
    assert ledger.stats()["open"] == 1


def test_a_retry_has_the_sample_as_it_was():
    """Whatever its taker has done with the fields, such as to add an answer to the messages."""
    source = Numbers("a", 6, single_process_fn=lambda record: {"messages": [{"content": record["value"]}]})
    ledger = PromptLedger(MergedDataset([source]))
    (first,) = ledger.take(1)
    before = deepcopy(first.sample)
    first.sample["messages"].append({"content": "an answer"})
    ledger.retry([first.id])
    assert ledger.take(1)[0].sample == before


def test_counts_add_up():
    """Each prompt is in one of done, dropped, open and due."""
    ledger = PromptLedger(prompts_of())
    first = ledger.take(7)
    ledger.done(ids(first[:2]))
    ledger.drop(ids(first[2:3]), "equal")
    ledger.drop(ids(first[3:4]), "timeout")
    ledger.retry(ids(first[4:5]), after=1)
    ledger.score(ids(first[:3]), [0.0, 0.5, 1])
    stats = ledger.stats()
    named = {"taken": 7, "done": 2, "dropped": 2, "open": 2, "due": 1, "attempts": 7, "again": 0, "left_out": 0}
    assert named | {"scored": 3, "dropped/equal": 1, "dropped/timeout": 1} | stats == stats
    assert stats["taken/a"] + stats["taken/b"] == 7
    assert stats["done/a"] + stats.get("done/b", 0) == 2
    ledger.take(2)
    assert ledger.stats()["attempts"] == 9
    assert ledger.stats()["taken"] == 8


def test_the_oldest_open_prompt_is_told(clock):
    """By attempts and seconds since it was taken; nothing where none is open."""
    ledger = PromptLedger(endless(("a", 50)))
    assert (ledger.stats()["oldest_prompts"], ledger.stats()["oldest_s"]) == (0, 0.0)
    first = ledger.take(2)
    clock.now += 5
    second = ledger.take(3)
    assert (ledger.stats()["oldest_prompts"], ledger.stats()["oldest_s"]) == (5, 5.0)
    ledger.done(ids(first))
    clock.now += 1
    assert (ledger.stats()["oldest_prompts"], ledger.stats()["oldest_s"]) == (3, 1.0)
    ledger.done(ids(second))
    assert (ledger.stats()["oldest_prompts"], ledger.stats()["oldest_s"]) == (0, 0.0)


class Foreign(IterableDataset):
    """Another library's."""

    def __iter__(self):
        return iter({"value": value} for value in range(3))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: MergedDataset([Numbers("a", 6, process_fn=Packer())]),
            "source 'a': .* got the process_fn of 'a', a stream function",
        ),
        (lambda: prompts_of(customized_yield_fn=Packer()), "got the customized_yield_fn of the top, a stream function"),
    ],
)
def test_prompts_of_several_records_are_refused(make, match):
    """What a stream function made cannot be read again by itself."""
    with pytest.raises(SourceError, match=match):
        PromptLedger(make())


def test_iterables_of_other_libraries_are_refused():
    """None of their records can be read again."""
    foreign = Foreign()
    foreign.name, foreign.percent = "f", 1
    with pytest.raises(SourceError, match=r"PromptLedger: source 'f': .* got another library's iterable"):
        PromptLedger(MergedDataset([foreign], cyclic=False))


class Breaking(Numbers):
    """Fails at some records as long as it is told to."""

    fails, error = True, OSError

    def __getitem__(self, index):
        if self.fails and index in (3, 5):
            raise self.error(f"no record {index}")
        return super().__getitem__(index)


def test_an_error_of_the_stream_loses_nothing():
    """What the call had for its taker by then comes at the next call, and the stream goes on where it stood."""
    whole = [sample["value"] for sample in prompts_of((("a", 9),))]
    source = Breaking("a", 9)
    ledger = PromptLedger(MergedDataset([source], cyclic=False, seed=3))
    first = min(whole.index(5), whole.index(3))
    for _ in range(2):
        with pytest.raises(OSError, match=f"no record {whole[first]}"):
            ledger.take(9)
    assert ledger.stats()["taken"] == 0
    saved = ledger.state_dict()
    source.fails = False
    assert [prompt.sample["value"] for prompt in ledger.take(9)] == whole
    ledger.load_state_dict(saved)
    assert [prompt.sample["value"] for prompt in ledger.take(9)] == whole


def test_an_error_of_the_stream_leaves_retries_due():
    """In their order."""
    source = Breaking("a", 9, fails=False)
    ledger = PromptLedger(MergedDataset([source], cyclic=False, seed=3))
    first = ledger.take(2)
    ledger.retry(ids(first[::-1]))
    source.fails = True
    with pytest.raises(OSError, match="no record"):
        ledger.take(9)
    assert ledger.stats()["due"] == 2
    assert ids(ledger.take(2)) == ids(first[::-1])


def test_an_interrupt_loses_nothing():
    """Ctrl-C within a read: the stream has not ended."""
    source = Breaking("a", 9, error=KeyboardInterrupt)
    ledger = PromptLedger(MergedDataset([source], cyclic=False, seed=3))
    with pytest.raises(KeyboardInterrupt):
        ledger.take(9)
    source.fails = False
    assert len(ledger.take(9)) == 9


def test_what_cannot_be_read_again_stays_due():
    """After a load: the error comes at each call, and nothing is lost once it can be read."""
    source = Breaking("a", 9, fails=False)
    ledger = PromptLedger(MergedDataset([source], cyclic=False, seed=3))
    first = ledger.take(9)
    state, source.fails = ledger.state_dict(), True
    ledger = PromptLedger(MergedDataset([source], cyclic=False, seed=3))
    ledger.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(OSError, match="no record"):
            ledger.take(4)
    source.fails = False
    assert places(ledger.take(4)) + places(ledger.take(9)) == places(first)


def test_threads_share_a_ledger():
    """Each prompt goes to one of them, and is settled once."""
    ledger, taken = PromptLedger(prompts_of((("a", 300), ("b", 100)))), []

    def work():
        while prompts := ledger.take(3):
            taken.extend(places(prompts))
            ledger.done(ids(prompts))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted((name, (0, i, 0)) for name, size in (("a", 300), ("b", 100)) for i in range(size))
    assert ledger.finished
    assert ledger.stats()["done"] == 400


# Scores


def test_the_newest_score_of_a_record_comes_with_its_prompts():
    """Kept over epochs, as float32; also of prompts that are settled or wait."""
    ledger = PromptLedger(endless(("a", 2)))
    first = ledger.take(2)
    ledger.done(ids(first[:1]))
    ledger.retry(ids(first[1:]), after=1)
    ledger.score([first[0].id, (first[1].id, 1)], [0.3, 0.7])
    ledger.score(ids(first[:1]), torch.tensor([0.1]))
    scores = {place[1][1]: value for place, value in zip(places(first), (0.1, 0.7), strict=True)}
    later = ledger.take(5)
    assert [prompt.score for prompt in later] == [float(np.float32(scores[prompt.record_id[1]])) for prompt in later]


@pytest.mark.parametrize(
    "values", [[0.1], [0.1, float("nan")], [0.1, float("inf")], [0, 1e39], [0, "1"], "12", 1, [[0], [1]]]
)
def test_scores_are_as_many_finite_numbers(values):
    """Else no score is set."""
    ledger = PromptLedger(prompts_of())
    with pytest.raises(ValueError, match=r"PromptLedger\.score: expected"):
        ledger.score(ids(ledger.take(2)), values)
    assert ledger.stats()["scored"] == 0


def test_scores_are_of_prompts_that_were_taken():
    """Where one is not, no score is set."""
    ledger = PromptLedger(prompts_of())
    (prompt,) = ledger.take(1)
    for bad, error in [(prompt.id + 1, ValueError), (prompt.id - (1 << 32), StaleAttempt), (prompt.id, ValueError)]:
        with pytest.raises(error, match="nothing of the call was done"):
            ledger.score([prompt.id, bad], [0, 0])
    assert ledger.stats()["scored"] == 0


@pytest.mark.parametrize("again_after", [1, 2])
def test_solved_and_hopeless_prompts_are_left_out_for_epochs(again_after):
    """Scored in epoch e, they are left out in e + 1 to e + again_after, counted, and then tried again."""
    ledger = PromptLedger(endless(("a", 4)), drop_at=(0.2, 0.9), again_after=again_after)
    first = {prompt.record_id[1]: prompt.id for prompt in ledger.take(4)}
    ledger.score([first[number] for number in range(4)], [0.2, 0.9, 0.21, 0.89])
    later = [prompt.record_id[:2] for prompt in ledger.take(2 * again_after + 4)]
    wanted = [(epoch, number) for epoch in range(1, again_after + 1) for number in (2, 3)]
    assert sorted(later) == wanted + [(again_after + 1, number) for number in range(4)]
    assert ledger.stats()["left_out"] == ledger.stats()["left_out/a"] == 2 * again_after


def test_a_newer_score_brings_a_prompt_back():
    """That of its next epoch counts."""
    ledger = PromptLedger(endless(("a", 1), ("b", 1)), drop_at=(0.0, 1.0))
    first = ledger.take(2)
    ledger.score(ids(first), [1.0, 0.5])
    ledger.score(ids(first[:1]), [0.5])
    assert len({prompt.source for prompt in ledger.take(2)}) == 2
    assert ledger.stats()["left_out"] == 0


def test_a_stream_of_which_all_is_left_out_is_an_error(monkeypatch):
    """Not an endless search; also where one of the sources has ended."""
    monkeypatch.setattr(module, "_MAX_LEFT_OUT", 1000)
    ledger = PromptLedger(
        MergedDataset([Numbers("a", 6), Numbers("b", 3, max_epochs=1)], stop="all_exhausted"),
        drop_at=(0.0, 1.0),
        again_after=10**9,
    )
    first = ledger.take(20)
    ledger.score(ids(first), [1.0] * 20)
    for times in (1, 2):
        with pytest.raises(SourceError, match=r"got 1,000 in a row that are left out\n  Widen drop_at"):
            ledger.take(1)
        assert ledger.stats()["left_out"] == 1000 * times


def test_a_finite_stream_may_leave_out_its_end():
    """Then it has ended."""
    dataset = prompts_of((("a", 4),), cyclic=True)
    dataset.datasets[0].max_epochs = 2
    ledger = PromptLedger(dataset, drop_at=(0.0, 1.0))
    first = ledger.take(4)
    ledger.score(ids(first), [0.0] * 4)
    ledger.done(ids(first))
    assert ledger.take(4) == []
    assert ledger.finished
    assert ledger.stats()["left_out"] == 4


@pytest.mark.parametrize(
    "drop_at", [(1.0, 0.0), (0.5, 0.5), (0.0,), 0.5, ("a", "b"), (float("nan"), 1.0), (0, 1, 2), (), 0]
)
def test_drop_at_is_two_numbers(drop_at):
    """The lower first."""
    with pytest.raises(ValueError, match="PromptLedger: expected drop_at to be two numbers, the lower first"):
        PromptLedger(prompts_of(), drop_at=drop_at)


@pytest.mark.parametrize("again_after", [0, -1, 1.0, None])
def test_again_after_is_a_number_of_epochs(again_after):
    """From 1 on."""
    with pytest.raises(ValueError, match="PromptLedger: expected again_after to be an int from 1 on"):
        PromptLedger(prompts_of(), drop_at=(0, 1), again_after=again_after)
