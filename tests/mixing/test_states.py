"""States: what they hold, and that states that do not fit are refused by what differs."""

import json
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import MergedDataset, StateError, merge_states, to_state
from tests.streams import Numbers, in_lane, loaded, plain, resumed, through_json


def make(seed=0, size=20, **changes):
    """A mixture of two sources."""
    return MergedDataset([Numbers("a", size, changes.pop("weight", 2)), Numbers("b", 10)], seed=seed, **changes)


def states_after(dataset, count, num_workers=0):
    """What a trainer holds after `count` samples."""
    states = {}
    for batch in islice(loaded(dataset, num_workers), count):
        states.update(to_state(batch))
    return through_json(states)


def test_states_are_small_flat_json():
    """One entry per source, rank and worker, of at most 300 bytes; nothing nested is lost by update."""
    states = states_after(make(), 15, num_workers=2)
    assert sorted(key for key in states if key.startswith("cursor")) == [
        f"cursor/0/0/0/{w}/{s}" for w in (0, 1) for s in ("", "a", "b")
    ]
    assert all(len(json.dumps({key: value})) <= 300 for key, value in states.items() if key.startswith("cursor"))


def test_to_state_takes_samples_lists_and_nested_lists():
    """All give the same."""
    batch = list(islice(iter(make()), 6))
    assert to_state(batch) == to_state([batch[:2], [batch[2:]]])
    states = {}
    for sample in batch:
        states.update(to_state(sample))
    assert states == to_state(batch)


@pytest.mark.parametrize("batch", [3, {"value": 1}, [{"value": 1}], "text", [None]])
def test_to_state_refuses_what_carries_no_state(batch):
    """A sample that a collate function built anew has lost its state."""
    with pytest.raises(StateError, match="to_state: expected a sample"):
        to_state(batch)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make(seed=1), "the mixture has another order"),
        (lambda: make(size=21), r"source 'a' has another order(.|\n)*20 records(.|\n)*21 records"),
        (lambda: make(shuffle_unstreaming_subsets=False), "source 'a' has another order"),
        (lambda: make(cyclic=False), "the mixture has another order"),
        (lambda: MergedDataset([Numbers("x", 20)]), r"written for another dataset, with the sources \['', 'a', 'b'\]"),
    ],
)
def test_states_of_another_dataset_or_seed_are_refused(other, message):
    """The message says what differs."""
    with pytest.raises(StateError, match=message):
        other().set_dataloader_states(states_after(make(), 5))


def test_a_map_style_dataset_that_has_grown_says_what_works():
    """Its first records alone go on, beside the others as a source of their own."""
    states = states_after(make(), 5)
    with pytest.raises(StateError, match=r"  Resume with (.|\n)*records added since as another source"):
        make(size=21).set_dataloader_states(states)


@pytest.mark.parametrize(
    "garbage",
    [
        {"x": 1},
        {"cursor/0/0/0/0/a": {"draws": 1}},
        {"generation/0": {"format": 1}},
        {"generation/0": {"format": 9, "dp_size": 1, "num_workers": 1, "nodes": {}}},
        {"worker/0/0/x": 1},
        {"worker/0/0/0": 1},
        {"cursor/0/0/0/0/a": {"draws": 1, "clock": float("nan"), "epoch": 0, "window": 0, "taken": 0}},
        {7: 7},
        [1, 2],
        None,
    ],
)
def test_garbage_is_refused(garbage):
    """The message names the key that to_state did not write."""
    with pytest.raises(StateError, match="states: "):
        make().set_dataloader_states(garbage)


def test_another_topology_does_not_go_back_to_windows():
    """They are windows of lanes that are no more."""
    dataset = make()
    dataset.set_dataloader_states(states_after(make(), 8, num_workers=2), reload_from_url_level=True)
    with pytest.raises(StateError, match=r"reload_from_url_level .*\n  Resume once with .*num_workers=2"):
        next(iter(in_lane(dataset, 0, 3)))


def test_states_of_another_rank_alone_are_refused():
    """A rank that finds nothing of its own must not begin anew in silence."""
    first = make()
    first.set_data_parallel(2, 0)
    dataset = make()
    dataset.set_data_parallel(2, 1)
    dataset.set_dataloader_states(states_after(first, 5))
    with pytest.raises(StateError, match=r"nothing of rank 1, only of ranks \[0\]"):
        next(iter(dataset))


def test_all_ranks_can_resume_from_one_joined_dict():
    """The ranks' entries have different keys."""
    joined, rests = {}, []
    for rank in range(2):
        dataset = make()
        dataset.set_data_parallel(2, rank)
        samples = list(islice(iter(dataset), 20))
        joined.update(to_state(samples[: 5 + rank]))
        rests.append([plain(sample) for sample in samples[5 + rank :]])
    for rank, rest in enumerate(rests):
        dataset = make()
        dataset.set_data_parallel(2, rank)
        dataset.set_dataloader_states(through_json(joined))
        assert [plain(sample) for sample in islice(iter(dataset), len(rest))] == rest


def test_weights_may_change_between_runs():
    """The clocks go on: the new shares hold from the resume on, without a jump."""
    states = states_after(make(weight=2), 300)
    dataset = make(weight=8)
    dataset.set_dataloader_states(states)
    names = [sample["__datasetname__"] for sample in islice(iter(dataset), 180)]
    assert all(abs(names[:j].count("a") - j * 8 / 9) <= 4 for j in range(1, 180))


def test_a_source_that_joins_starts_at_the_lowest_clock():
    """It gets its share from then on, not the thousands that it missed; also at the resume after that."""
    states = states_after(make(), 3000)

    def grown():
        return MergedDataset([Numbers("a", 20, 2), Numbers("b", 10), Numbers("new", 10)])

    dataset = resumed(grown, states)
    names = []
    for sample in islice(iter(dataset), 100):
        names.append(sample["__datasetname__"])
        states.update(to_state(sample))
    assert 22 <= names.count("new") <= 28
    whole = [plain(s) for s in islice(iter(resumed(grown, states)), 50)]
    assert 10 <= sum(s["__datasetname__"] == "new" for s in whole) <= 15


def test_a_source_that_joined_but_was_not_drawn_yet_still_starts_at_the_lowest_clock():
    """The states list the sources of each generation, so that the second resume tells it from one that never drew."""
    states = states_after(make(), 3000)

    def grown():
        return MergedDataset([Numbers("a", 20, 2), Numbers("b", 10), Numbers("new", 10, 0.01)])

    dataset = resumed(grown, states)
    for sample in islice(iter(dataset), 2):
        states.update(to_state(sample))
    whole = [plain(s) for s in islice(iter(resumed(grown, states)), 60)]
    assert [s["__datasetname__"] for s in whole].count("new") <= 2


def test_a_source_can_leave():
    """The others go on where they stood."""
    states = states_after(make(), 31)
    want = [s["value"] for s in islice(iter(resumed(make, states)), 60) if s["__datasetname__"] == "a"]
    alone = resumed(lambda: MergedDataset([Numbers("a", 20, 2)]), states)
    assert [s["value"] for s in islice(iter(alone), len(want))] == want


def test_states_of_a_pass_continue_that_pass():
    """Without set_epoch, a resume takes the latest pass; states of another pass do not apply."""

    def finite():
        return MergedDataset([Numbers("a", 12)], cyclic=False)

    states, dataset = {}, finite()
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        values = []
        for sample in islice(iter(dataset), 12 if epoch == 0 else 5):
            values.append(sample["value"])
            states.update(to_state(sample))
    assert sorted(values + [s["value"] for s in resumed(finite, states)]) == list(range(12))
    later = resumed(finite, states)
    later.set_epoch(2)
    assert sorted(s["value"] for s in later) == list(range(12))


def test_a_source_that_returns_must_not_have_changed():
    """It is compared with what it was when it was last there."""
    states = states_after(make(), 31)
    for sample in islice(iter(resumed(lambda: MergedDataset([Numbers("a", 20, 2)]), states)), 5):
        states.update(to_state(sample))
    with pytest.raises(StateError, match=r"source 'b' has another order(.|\n)*10 records(.|\n)*7 records"):
        resumed(lambda: MergedDataset([Numbers("a", 20, 2), Numbers("b", 7)]), states)


def test_a_source_that_becomes_common_is_drawn_at_once():
    """Its clock was far ahead while it was rare; it does not wait until the others come there."""
    states = states_after(MergedDataset([Numbers("a", 20, 1000), Numbers("b", 10, 1)]), 700)
    names = [s["__datasetname__"] for s in islice(iter(resumed(lambda: make(weight=1), states)), 100)]
    assert 46 <= names.count("b") <= 54


def test_resumes_after_a_change_of_weights_agree():
    """However often the run stops, the source that became commoner comes when it would in one run."""
    states = states_after(MergedDataset([Numbers("a", 20, 1), Numbers("b", 10, 0.001)]), 1900)

    def changed():
        return MergedDataset([Numbers("a", 20, 1), Numbers("b", 10, 0.02)])

    whole = [plain(sample) for sample in islice(resumed(changed, states), 300)]
    assert 5 <= [sample["__datasetname__"] for sample in whole].count("b") <= 7
    got = []
    while len(got) < 300:
        for sample in islice(resumed(changed, states), 30):
            got.append(plain(sample))
            states.update(to_state(sample))
    assert got == whole


def test_a_source_that_was_not_drawn_yet_does_not_catch_up_when_it_becomes_common():
    """Its first place in the order follows from its new weight, but not from the beginning of the run."""
    states = states_after(MergedDataset([Numbers("a", 20, 0.01), Numbers("b", 10, 0.0001)]), 50)
    assert not any(key.endswith("/b") for key in states)
    again = resumed(lambda: MergedDataset([Numbers("a", 20, 0.01), Numbers("b", 10, 0.01)]), states)
    names = [sample["__datasetname__"] for sample in islice(again, 40)]
    assert 19 <= names.count("b") <= 21


@pytest.mark.parametrize("change", ["weight", "join"])
@pytest.mark.parametrize("is_inner", [False, True])
def test_what_a_yield_function_had_begun_is_drawn_anew_when_its_blend_changes(change, is_inner, caplog):
    """Other records would come again in the open burst: what it gave comes once more, as the log says how many."""

    def in_fours(records):
        for first in records:
            four = [first, *islice(records, 3)]
            for half in (four[:2], four[2:]):
                yield {"of": [(sample["__datasetname__"], sample["value"]) for sample in half]}

    def make(weight, *others):
        sources = [Numbers("a", 40, weight), Numbers("b", 40), *others]
        inner = MergedDataset(sources, customized_yield_fn=in_fours, shuffle_unstreaming_subsets=False)
        if not is_inner:
            return inner
        inner.name, inner.percent = "inner", 1
        return MergedDataset([inner])

    def later():
        return make(1, Numbers("c", 40)) if change == "join" else make(5)

    states, before = {}, []
    for sample in islice(make(1), 7):
        before += sample["of"]
        states.update(to_state(sample))
        caplog.clear()
        after = [record for joined in islice(resumed(later, states), 12) for record in joined["of"]]
        given = states[f"cursor/0/0/0/0/{'inner' if is_inner else ''}"]["given"]
        assert f"is drawn anew: of what it gave, {given} samples come again" in caplog.text
        for name in ("a", "b"):
            values = [value for source, value in before + after if source.endswith(name)]
            assert set(values) == set(range(max(values) + 1))
            assert len(values) - len(set(values)) <= 4
    caplog.clear()
    list(islice(resumed(lambda: make(1), states), 3))
    assert not caplog.text


def test_a_window_beyond_the_epoch_is_refused():
    """Damaged states do not end an epoch in silence."""
    states = states_after(make(), 5)
    states["cursor/0/0/0/0/a"]["window"] = 10**6
    with pytest.raises(StateError, match="source 'a': states in window 1000000 of epoch 0, expected at most 20"):
        next(iter(resumed(make, states)))


def test_merge_states_takes_each_rank_where_it_is_furthest():
    """Ranks that resumed from a joined dict carry old copies of each other: order and repetition do not matter."""
    joined, streams = {}, [[], []]
    for leg in (4, 5, 6):
        parts = []
        for rank in range(2):
            dataset = make()
            dataset.set_data_parallel(2, rank)
            states = through_json(joined)
            dataset.set_dataloader_states(states)
            for sample in islice(iter(dataset), leg + rank):
                streams[rank].append(plain(sample))
                states.update(to_state(sample))
            parts.append(states)
        joined = merge_states(*parts)
        assert joined == merge_states(*reversed(parts), joined, *parts)
    for rank in range(2):
        whole = make()
        whole.set_data_parallel(2, rank)
        assert streams[rank] == [plain(sample) for sample in islice(iter(whole), 15 + 3 * rank)]


def test_states_of_different_runs_are_not_merged():
    """They disagree on what determines the order."""
    with pytest.raises(StateError, match="not of one run: they differ in generation/0"):
        merge_states(states_after(make(), 3), states_after(make(seed=1), 3))


def test_a_sample_that_torch_has_converted_says_how_to_keep_it():
    """Without a batch size its loader makes lists of tuples."""
    first, second = (MergedDataset([Numbers("a", 9, 1)]) for _ in range(2))
    with pytest.raises(StateError, match="with batch_size=None, by a function that returns the sample as it is"):
        to_state(next(iter(DataLoader(first, batch_size=None))))
    assert to_state(next(iter(DataLoader(second, batch_size=None, collate_fn=dict))))


def test_states_are_what_json_gives_back():
    """Also of stream functions, whose cursors hold a position as a tuple."""
    states = {}
    for sample in islice(MergedDataset([Numbers("a", 40, process_fn=pairs)]), 30):
        states.update(to_state(sample))
    assert "pulled" in states["cursor/0/0/0/0/a"]
    assert states == through_json(states)


def pairs(samples):
    """One of two."""
    for sample in samples:
        next(samples, None)
        yield sample
