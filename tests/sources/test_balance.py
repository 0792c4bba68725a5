"""Packing and grouping that give outputs of alike cost at the same step, over a top mixture."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import Cost, GroupByLength, MergedDataset, PackTokens, instantiate_from_yaml, named, report, to_state
from streamdata.errors import RecipeError, StateError
from tests.sources.test_pack_tokens import Pulls, Stretches, documents, lengths_of, run, wanted
from tests.streams import Numbers, assert_exact_resume, in_lane, loaded, resumed

COST = Cost(linear=10, quadratic=1)
Sample = dict[str, Any]
LONGER = ["drop", "truncate"]
settings_of = st.tuples(st.integers(1, 12), st.integers(1, 5), st.sampled_from(LONGER))


def lengths_in(output: Sample) -> list[int]:
    """Tokens of each document of a row or group, those of a group as long as its longest."""
    if "samples" not in output:
        return [end - begin for begin, end in pairwise(output["cu_seqlens"].tolist())]
    return [max(len(sample["input_ids"]) for sample in output["samples"])] * len(output["samples"])


def cost_of(output: Sample) -> float:
    """By the definition."""
    return sum(COST.linear * size + COST.quadratic * size**2 for size in lengths_in(output))


def bursts_of(function: Any, samples: list[Sample]) -> list[list[Sample]]:
    """The outputs of each burst: those after which it pulled nothing."""
    bursts: dict[int, list[Sample]] = {}
    pulls = Pulls(iter(samples).__next__)
    for output in function(pulls):
        bursts.setdefault(pulls.number, []).append(output)
    return list(bursts.values())


def packer(most: int = 12, rows: int = 4, longer: Any = "error", **more: Any) -> PackTokens:
    """One that balances."""
    return PackTokens(most, longer=longer, balance=COST, rows=rows, **more)


def grouper(most: int = 12, groups: int = 4, longer: Any = "error") -> GroupByLength:
    """One that balances."""
    return GroupByLength(most, longer=longer, balance=COST, groups=groups)


BOTH = pytest.mark.parametrize("make", [packer, grouper])


@BOTH
@given(lengths_of, settings_of)
def test_each_burst_has_exactly_so_many_outputs(make: Any, lengths: list[int], settings: Any) -> None:
    """But the last; each token is in one output."""
    most, number, longer = settings
    bursts = bursts_of(make(most, number, longer), documents(lengths))
    assert all(len(burst) == number for burst in bursts[:-1])
    assert all(len(burst) <= number for burst in bursts[-1:])
    outputs = [output for burst in bursts for output in burst]
    samples = [sample for output in outputs for sample in output.get("samples", [output])]
    ids = [int(token) for sample in samples for token in sample["input_ids"]]
    assert Counter(ids) == Counter(wanted(lengths, most, longer))
    assert all(0 < sum(lengths_in(output)) <= most for output in outputs)


@BOTH
@given(lengths_of, settings_of)
def test_a_resume_after_each_output_gives_the_rest(make: Any, lengths: list[int], settings: Any) -> None:
    """The same outputs and the same cursors, whichever of them it begins at."""
    function, samples = make(*settings), documents(lengths)
    whole = run(function, samples)
    for index, (_, cursor) in enumerate(whole):
        assert run(function, samples, cursor) == whole[index + 1 :]


@BOTH
def test_outputs_of_a_burst_come_by_quantiles_of_their_cost(make: Any) -> None:
    """In one permutation, which is that of the golden ratio."""
    lengths = np.random.default_rng(0).integers(1, 30, 400).tolist()
    turn = np.argsort(0.6180339887498949 * np.arange(16) % 1).tolist()
    bursts = bursts_of(make(64, 16), documents(lengths))
    assert len(bursts) > 4
    for burst in bursts[:-1]:
        costs = [cost_of(output) for output in burst]
        assert costs == [sorted(costs)[number] for number in turn]


@BOTH
def test_documents_that_are_cut_are_refused(make: Any) -> None:
    """Of one that is longer than a burst, more than a burst would come again."""
    with pytest.raises(ValueError, match=r"longer to be another than 'split' beside balance.*\n  Let a single_process"):
        make(longer="split")


def test_lookahead_does_not_bound_a_burst() -> None:
    """It is of as many samples as fill its rows, and rows are full."""
    lengths = np.random.default_rng(0).integers(1, 30, 3000).tolist()
    first, second, *_ = bursts_of(packer(256, 32, lookahead=2), documents(lengths))
    assert sum(len(row["input_ids"]) for row in (*first, *second)) > 0.99 * 64 * 256


def test_what_it_carries_over_is_less_than_a_burst() -> None:
    """The state says how much; the records between are given again."""
    lane = Stretches(packer(12, 4, "truncate"), documents(np.random.default_rng(0).integers(1, 15, 300).tolist()))
    for _, (_, state, _) in lane:
        assert state is None or state["rewind"] <= 4 * 12


@BOTH
def test_bytes_that_do_not_hold_a_burst_are_an_error(make: Any) -> None:
    """At the first such burst; with what it names all is well."""
    samples = [{"input_ids": [1] * 100, "image": bytes(1000)} for _ in range(999)]
    function = PackTokens if make is packer else GroupByLength
    settings: Any = {"balance": COST, "rows" if make is packer else "groups": 8}
    expected = r"(rows|groups) is 8, expected their 8,000 tokens within lookahead_bytes=90000, got 5,000 .*\n  Set look"
    with pytest.raises(ValueError, match=expected) as caught:
        next(function(1000, lookahead_bytes=90_000, **settings)(iter(samples)))
    needed = int(str(caught.value).split("about ")[1].split(",")[0])
    assert next(function(1000, lookahead_bytes=needed, **settings)(iter(samples)))


@pytest.mark.parametrize("settings", [{"rows": 0}, {"rows": 2.0}, {"balance": 3}, {"balance": {"linear": 1}}])
def test_settings_out_of_range_are_refused(settings: Any) -> None:
    """When it is made."""
    with pytest.raises(ValueError, match=r"PackTokens: rows(:| is) .*expected .*\n  "):
        PackTokens(8, **({"balance": COST} | settings))


@pytest.mark.parametrize("others", [(packer(12, 5), packer()), (PackTokens(12), packer()), (packer(), PackTokens(12)),
                                    (packer(), PackTokens(12, balance=Cost(1), rows=4))])  # fmt: skip
def test_states_of_other_settings_are_refused(others: Any) -> None:
    """They would plan the open burst otherwise."""
    written, present = others
    with pytest.raises(StateError, match=r"was written with (balance|rows)=.*, the run has .*\n  Set it back"):
        present.load_state_dict(json.loads(json.dumps(written.state_dict())))


def tokens(record: Sample) -> Sample:
    """A document of 1 to 11 tokens."""
    return {"input_ids": [record["value"]] * (1 + record["value"] * 7 % 11), "value": record["value"]}


def stream(function: Any, **more: Any) -> MergedDataset:
    """Two sources below it."""
    sources = [Numbers(name, size, 1, single_process_fn=tokens) for name, size in (("a", 300), ("b", 71))]
    return MergedDataset(sources, seed=3, customized_yield_fn=function, **more)


@pytest.mark.each_value
@BOTH
@pytest.mark.parametrize("longer", LONGER)
def test_a_stream_resumes_exactly(make: Any, longer: Any) -> None:
    """From every step."""
    assert_exact_resume(lambda: stream(make(8, 5, longer)), steps=17, beyond=15, num_workers=2)


def some_fail(record: Sample) -> Sample:
    """Of every ninth record nothing is made."""
    if record["value"] % 9 == 4:
        raise ValueError("damaged")
    return tokens(record)


@BOTH
def test_a_finite_stream_with_skipped_and_bad_records_resumes_exactly(make: Any) -> None:
    """From its first steps, to its end."""

    def finite() -> MergedDataset:
        sizes = {"a": 90, "b": 31}
        sources = [Numbers(name, size, 1, single_process_fn=some_fail, max_bad=99) for name, size in sizes.items()]
        skip = [{"source": "a", "index": index} for index in range(0, 90, 7)]
        return MergedDataset(sources, cyclic=False, stop="all_exhausted", customized_yield_fn=make(12, 5), skip=skip)

    assert_exact_resume(finite, steps=9, beyond=99)


def ranks_of(make: Callable[[], MergedDataset], size: int, states: dict | None = None) -> list[MergedDataset]:
    """The datasets of all ranks, which go on from states."""
    ranks = [resumed(make, states) if states else make() for _ in range(size)]
    for rank, dataset in enumerate(ranks):
        dataset.set_data_parallel(size, rank)
    return ranks


def assert_aligned(lanes: list[list[Sample]], rows: int) -> None:
    """The rows of each burst, beginning with the first, have the same ranks by cost in all lanes."""
    turn = np.argsort(0.6180339887498949 * np.arange(rows) % 1).tolist()
    for lane in lanes:
        for begin in range(0, len(lane), rows):
            costs = [cost_of(row) for row in lane[begin : begin + rows]]
            assert costs == [sorted(costs)[number] for number in turn]


def test_a_change_of_size_aligns_all_lanes_again(caplog: pytest.LogCaptureFixture) -> None:
    """Each begins with a burst of its own; at most the rows of the open ones come again, and the log says how many."""

    def make() -> MergedDataset:
        return stream(packer(40, 6))

    states: dict = {}
    for rank, dataset in enumerate(ranks_of(make, 3)):
        for batch in islice(loaded(dataset, 2), 17 + 2 * (rank == 0)):  # one rank ahead, as after an odd stop
            states.update(to_state(batch))
    with caplog.at_level(logging.WARNING, "streamdata"):
        lanes = [list(islice(in_lane(one, worker, 2), 12)) for one in ranks_of(make, 2, states) for worker in (0, 1)]
    assert_aligned(lanes, 6)
    given = [value.get("given", 0) for key, value in states.items() if key.startswith("cursor/") and key.endswith("/")]
    assert max(given) <= 6
    assert f"of what they gave, {sum(given)} samples come again" in caplog.text


def test_a_change_of_size_loses_nothing() -> None:
    """Of a finite stream each document comes, and twice at most those in rows of open bursts."""

    def make() -> MergedDataset:
        return stream(packer(40, 6), cyclic=False, stop="all_exhausted")

    states: dict = {}
    counts: Counter = Counter()

    def count(row: Sample) -> None:
        counts.update(zip(row["source_ids"].tolist(), map(tuple, row["record_ids"].tolist()), strict=True))

    open_rows: dict = {}
    for rank, dataset in enumerate(ranks_of(make, 3)):
        for number, row in enumerate(islice(dataset, 10)):
            count(row)
            states.update(to_state(row))
            open_rows[rank] = (open_rows[rank] if number % 6 else 0) + len(row["record_ids"])
    for dataset in ranks_of(make, 2, states):
        for row in dataset:
            count(row)
    assert len(counts) == 371
    assert 0 < sum(counts.values()) - 371 <= sum(open_rows.values())


@BOTH
def test_no_burst_at_the_end_is_longer(make: Any) -> None:
    """Documents of more than half a row, which fill twice as many rows as their tokens would."""

    def halves(record: Sample) -> Sample:
        return {"input_ids": [record["value"]] * 7}

    dataset = MergedDataset(
        [Numbers("a", 47, 1, single_process_fn=halves)], cyclic=False, customized_yield_fn=make(12, 5)
    )
    states = [to_state(row) for row in dataset]
    assert [state["cursor/0/0/0/0/"]["given"] for state in states] == [*(list(range(1, 6)) * 9), 1, 2]


def test_the_log_counts_no_burst_of_a_lane_that_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Its last one was given whole: none of its rows come again."""

    def make() -> MergedDataset:
        return stream(packer(40, 6), cyclic=False, stop="all_exhausted")

    states: dict = {}
    for dataset, count in zip(ranks_of(make, 2), (None, 8), strict=True):
        states |= to_state(list(islice(dataset, count)))
    with caplog.at_level(logging.WARNING, "streamdata"):
        next(iter(resumed(make, states)))
    assert "; 1 open bursts of customized_yield_fn are drawn anew: of what they gave, 2 samples" in caplog.text


def test_other_weights_align_all_lanes_again() -> None:
    """Each begins with a burst of its own, as the open ones are drawn anew."""
    states: dict = {}
    for dataset in ranks_of(lambda: stream(packer(40, 6)), 2):
        for batch in islice(loaded(dataset, 2), 9):
            states.update(to_state(batch))

    def heavier() -> MergedDataset:
        dataset = stream(packer(40, 6))
        dataset.datasets[0].percent = 3
        return dataset

    lanes = [list(islice(in_lane(one, worker, 2), 12)) for one in ranks_of(heavier, 2, states) for worker in (0, 1)]
    assert_aligned(lanes, 6)


def test_a_resume_of_the_same_size_realigns_nothing() -> None:
    """The lanes go on within their bursts: what they give together is aligned with what they gave before."""
    states: dict = {}
    before = []
    for batch in islice(loaded(stream(packer(40, 6)), 2), 9):
        states.update(to_state(batch))
        before.append(batch)
    again = list(islice(loaded(resumed(lambda: stream(packer(40, 6)), states), 2), 15))
    both = [batch[0] for batch in (*before, *again)]
    assert_aligned([both[0::2], both[1::2]], 6)


def below(**more: Any) -> MergedDataset:
    """A mixture with one that balances below the top."""
    return MergedDataset([named(stream(packer()), name="inner", percent=1), Numbers("a", 9, 1)], **more)


@pytest.mark.parametrize(
    ("make", "who"),
    [
        (lambda: MergedDataset([Numbers("a", 9, 1, process_fn=packer())]), "'a': process_fn"),
        (lambda: MergedDataset([Numbers("a", 9, 1, process_fn=[iter, packer()])]), "'a': process_fn"),
        (lambda: MergedDataset([Numbers("a", 9, 1, process_fn=grouper())]), "'a': process_fn"),
        (below, "mixture 'inner'"),
    ],
)
def test_elsewhere_than_at_the_top_it_is_refused(make: Any, who: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=rf"{who}: expected .* balance, .* lanes draw different sources .*\n  Make it"):
        make()


def test_failures_cannot_be_forgiven() -> None:
    """One lane would give another row than the others from then on."""
    dataset = stream(packer())
    dataset.max_bad = 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="expected no max_bad beside a customized_yield_fn that balances, got 3"):
        next(iter(dataset))


RECIPE = """
target: streamdata.MergedDataset
params:
  datasets:
    - {target: streamdata.JsonlIterableDataset, name: a, percent: 1, params: {path: FOLDER}}
  customized_yield_fn:
    target: streamdata.PackTokens
    params:
      max_tokens: 20
      rows: 4
      balance: {target: streamdata.Cost.of_model, params: {num_params: 1.0e+3, hidden: 4, layers: 2}}
"""


def test_a_recipe_names_a_cost(tmp_path: Path) -> None:
    """As numbers, or by a model; a cost that is none is an error of the recipe."""
    (tmp_path / "0.jsonl").write_text("".join(json.dumps({"input_ids": [n] * n}) + "\n" for n in range(1, 9)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    dataset = instantiate_from_yaml(recipe, allow=[])
    assert dataset.customized_yield_fn.balance.cost == Cost(6000, 48)
    assert len(list(islice(dataset, 9))) == 9
    recipe.write_text(RECIPE.replace("FOLDER", str(tmp_path)).replace("1.0e+3", "-1"))
    with pytest.raises(RecipeError, match="Cost: linear is -6"):
        instantiate_from_yaml(recipe, allow=[])


def test_the_states_sum_up_what_outputs_cost() -> None:
    """In the top's entry; rows of a burst that is replayed are not added twice."""
    states: dict = {}
    total = 0.0
    for steps in (3, 9, 5):
        for row in islice(resumed(lambda: stream(packer(40, 6)), states) if states else stream(packer(40, 6)), steps):
            states.update(to_state(row))
            total += cost_of(row)
    assert states["cursor/0/0/0/0/"]["cost"] == pytest.approx(total)


def test_schedules_go_by_samples_still() -> None:
    """What rows cost is no time: the wanted shares are about those that were drawn."""
    sources = [Numbers("a", 300, [[0, 1], [400, 0.1]], single_process_fn=tokens), Numbers("b", 71, 1)]
    sources[1].single_process_fn = tokens  # type: ignore[attr-defined]
    states: dict = {}
    for row in islice(MergedDataset(sources, customized_yield_fn=packer(40, 6)), 60):
        states.update(to_state(row))
    numbers = report(states)
    assert numbers["wanted/a"] == pytest.approx(numbers["achieved/a"], abs=0.03)
