import json
from itertools import islice

import numpy as np
import pytest
import torch
from PIL import Image

from streamdata import MergedDataset, report, to_state
from streamdata.tools.view.totals import Delivery, estimate_bytes
from tests.streams import Numbers, in_lane, loaded
from tests.tools.view.functions import failing, odd, pairs


def delivered(dataset: MergedDataset, batches: int, num_workers: int = 0) -> Delivery:
    """What so many batches of 10 hold."""
    delivery = Delivery(dataset)
    for batch in islice(loaded(dataset, num_workers, batch_size=10), batches):
        delivery.add(batch)
    return delivery


def num_tokens(sample: dict) -> float:
    """A cost."""
    return 1.0 + sample["value"]


def nested() -> MergedDataset:
    """Wanted: a quarter `a`, three quarters `inner`, of which one fifth `b`."""
    inner = MergedDataset([Numbers("b", 50, 1), Numbers("c", 50, 4)])
    inner.name, inner.percent = "inner", 3
    return MergedDataset([Numbers("a", 50, 1), inner])


@pytest.mark.parametrize("num_workers", [0, 3])
def test_wanted_and_achieved_shares_agree_in_a_nested_mixture(num_workers: int) -> None:
    """Overall weights multiply down the tree; the draws of all lanes add up to the samples."""
    delivery = delivered(nested(), 60, num_workers)
    sources = {source.name: source for source in delivery.sources()}
    assert {path: source.wanted for path, source in sources.items()} == pytest.approx(
        {"a": 0.25, "inner.b": 0.15, "inner.c": 0.6}
    )
    assert delivery.samples == sum(source.samples for source in sources.values()) == 600
    assert all(source.achieved == pytest.approx(source.wanted, abs=0.02) for source in sources.values())


def test_drops_and_forgiven_failures_are_counted_per_source() -> None:
    """They come from the states, so they are there in the trainer's process too."""
    dropping, bad = Numbers("dropping", 10, single_process_fn=odd), Numbers("bad", 50, single_process_fn=failing)
    bad.max_bad = 100
    dropping, bad = delivered(MergedDataset([dropping, bad]), 4).sources()
    assert (dropping.samples, bad.samples) == (20, 20)
    assert 15 <= dropping.dropped <= 20
    assert dropping.bad == bad.dropped == 0
    assert 3 <= bad.bad <= 6


def test_with_a_yield_function_draws_are_counted_not_outputs() -> None:
    """A sample made of two draws."""
    delivery = delivered(MergedDataset([Numbers("a", 50, 3), Numbers("b", 50, 1)], customized_yield_fn=pairs), 10)
    a, b = delivery.sources()
    assert delivery.samples == 100
    assert a.samples + b.samples == 2 * 100
    assert a.achieved == pytest.approx(0.75, abs=0.02)


def test_wanted_shares_are_of_all_that_was_wanted() -> None:
    """They add up to 1 where a function within the mixture takes more samples, and where some were left out."""
    inner = MergedDataset([Numbers("a", 500, 3), Numbers("b", 500, 1)], customized_yield_fn=pairs)
    inner.name, inner.percent = "inner", 1
    delivery = delivered(MergedDataset([inner, Numbers("c", 500, 1)]), 6)
    assert {one.name: one.wanted for one in delivery.sources()} == pytest.approx(
        {"inner.a": 3 / 8, "inner.b": 1 / 8, "c": 1 / 2}
    )
    uneven = {"uneven/0/0/0": {"batches": -2, "left_out/a": 15, "left_out/b": 5}}
    plain = delivered(MergedDataset([Numbers("a", 50, 3), Numbers("b", 50, 1)]), 4)
    numbers = report(plain.states | uneven)
    assert (numbers["wanted/a"], numbers["wanted/b"]) == (0.75, 0.25)


def test_counts_go_on_after_a_resume() -> None:
    """They tell of the stream since it began; samples are those of this run."""
    before = delivered(nested(), 5)
    dataset = nested()
    dataset.set_dataloader_states(before.states)
    after = Delivery(dataset, json.loads(json.dumps(before.states)))
    after.add(list(islice(dataset, 10)))
    assert (after.samples, sum(source.samples for source in after.sources())) == (10, 60)


def test_a_lane_counts_once_though_its_states_span_generations() -> None:
    """When a source joins, the older generation's entries stay in the states."""
    first = delivered(MergedDataset([Numbers("a", 50)]), 3)
    joined = MergedDataset([Numbers("a", 50), Numbers("b", 50)])
    joined.set_dataloader_states(first.states)
    delivery = Delivery(joined, first.states)
    delivery.add(list(islice(joined, 10)))
    assert [source.samples for source in delivery.sources()] == [35, 5]


def test_counts_go_on_under_another_number_of_workers() -> None:
    """What lanes of the earlier size delivered is in the header that the first batch brings."""
    before = delivered(nested(), 3, num_workers=2)
    dataset = nested()
    dataset.set_dataloader_states(before.states)
    after = Delivery(dataset, before.states)
    after.add(list(islice(dataset, 10)))
    assert sum(source.samples for source in after.sources()) == 40


def test_what_schedules_want_is_reported_in_their_first_pass_alone() -> None:
    """Each pass begins them anew, and states do not say what a generation drew in which pass."""
    states: dict = {}
    for number in range(2):
        dataset = MergedDataset(
            [Numbers("a", 40, [[0, 1], [40, 0]]), Numbers("b", 40, [[0, 0], [40, 1]])], cyclic=False
        )
        dataset.set_dataloader_states(states)
        dataset.set_epoch(number)
        for sample in dataset:
            states.update(to_state([sample]))
        shares = {name: value for name, value in report(states).items() if name.startswith("wanted/")}
        assert shares.keys() == (set() if number else {"wanted/a", "wanted/b"})
    assert "not known" in Delivery(dataset, states).table()


def test_nothing_delivered_is_no_division_by_zero() -> None:
    """Before the first batch all counts are 0."""
    assert [source.achieved for source in Delivery(nested()).sources()] == [0, 0, 0]


def test_lanes_add_up() -> None:
    """Each worker's entry counts."""
    delivery = Delivery(nested())
    for worker in (0, 1):
        delivery.add(list(islice(in_lane(nested(), worker, 2), 7)))
    assert sum(source.samples for source in delivery.sources()) == delivery.samples == 14


def test_the_table_has_a_line_for_each_source() -> None:
    """With a header, in columns."""
    header, *lines = delivered(nested(), 2).table().splitlines()
    assert header.split() == ["source", "wanted", "achieved", "samples", "dropped", "bad"]
    assert [line.split()[0] for line in lines] == ["a", "inner.b", "inner.c"]
    assert lines[0].split()[1:] == ["25", "%", "25", "%", "5", "0", "0"]


def test_shares_by_cost_are_marked_as_such() -> None:
    """A source of long samples gives fewer of them."""
    dataset = MergedDataset([Numbers("a", 5)], cost=num_tokens)
    assert Delivery(dataset).table().endswith("\nwanted are shares of num_tokens, achieved are shares of samples")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (torch.zeros(3, 4, dtype=torch.float32), 48),
        (torch.zeros(3, dtype=torch.bfloat16), 6),
        (np.zeros((2, 3), np.int64), 48),
        (b"12345", 5),
        ("abc", 3),
        (None, 0),
        (7, 8),
        ([b"12", {"x": b"345"}, (1.5,)], 13),
        (Image.new("RGB", (10, 20)), 600),
        ({"text": "abc", "__url__": "a/long/path", "__index__": 3}, 3),
    ],
)
def test_sizes_are_those_of_the_contents(value: object, size: int) -> None:
    """The fields that streamdata adds count nothing."""
    assert estimate_bytes(value) == size
