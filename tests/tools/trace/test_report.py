"""Numbers for a logger: what was delivered, and how long it took."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch.distributed
from torch.utils.data import DataLoader

from streamdata import Cost, MergedDataset, PackTokens, StreamLoader, merge_states, mixed_collate, report, to_state
from streamdata.tools.view.totals import describe_states
from tests.streams import Numbers, through_json
from tests.tools.trace.packed import Untold


def ids(record):
    """Drops each fourth record, and gives as many tokens as the record's number modulo 3."""
    return {"input_ids": [0] * (record["value"] % 3)} if record["value"] % 4 else None


def mixture():
    return MergedDataset([Numbers("a", 40, 3), Numbers("b", 40, 1, single_process_fn=ids)], seed=1)


def test_a_report_counts_what_was_delivered():
    """Whatever workers read ahead."""
    states, samples = {}, []
    for batch in islice(DataLoader(mixture(), 5, collate_fn=mixed_collate, num_workers=2), 9):
        states.update(to_state(batch))
        samples += batch
    numbers = report(states)
    of_b = [sample for sample in samples if sample["__datasetname__"] == "b"]
    assert (numbers["samples"], numbers["steps"]) == (45, 9)
    assert numbers["samples/b"] == len(of_b)
    assert numbers["samples/a"] == 45 - len(of_b)
    assert numbers["tokens"] == numbers["tokens/b"] == sum(len(sample["input_ids"]) for sample in of_b) > 0
    assert numbers["records/b"] == numbers["samples/b"] + numbers["dropped/b"] > numbers["samples/b"]
    assert numbers["epochs/b"] == numbers["records/b"] / 40
    assert numbers["wanted/a"] == 0.75
    assert all(type(value) in (int, float) for value in numbers.values())


def test_tokens_go_on_over_resumes_and_changes_of_topology():
    """Each topology counts its own; the headers keep the sums."""
    states, tokens = {}, 0
    for size in (2, 3, 1):
        own = []
        for rank in range(size):
            dataset = mixture()
            dataset.set_data_parallel(size, rank)
            dataset.set_dataloader_states(states)
            own.append(dict(states))
            for sample in islice(dataset, 20):
                tokens += len(sample.get("input_ids", ()))
                own[-1].update(to_state(sample))
        states = merge_states(*own)
    assert report(states)["tokens/b"] == tokens > 0
    assert report(states)["samples"] == 20 * 6


def test_one_rank_knows_of_others_what_it_resumed_from():
    """Its own samples since then come on top; joined again, states of all ranks have the whole job's."""
    states = {}
    for before in (0, 20 * 2):
        own = []
        for rank in range(2):
            dataset = mixture()
            dataset.set_data_parallel(2, rank)
            loader = StreamLoader(dataset, batch_size=5, collate=mixed_collate)
            loader.load_state_dict(states)
            for _ in islice(loader, 4):
                pass
            own.append(loader.state_dict())
            assert report(own[-1])["samples"] == before + 20
        states = merge_states(*own)
        assert report(states)["samples"] == before + 20 * 2


def document(record):
    """1 to 7 token ids."""
    return {"input_ids": np.full(1 + record["value"] % 7, record["value"])}


@pytest.mark.parametrize("longer", ["error", "split"])
def test_records_of_a_packer_are_those_in_rows(longer):
    """However far it pulls ahead: here it holds its source fifteen times; also after a resume within a burst."""
    delivered, states = Counter(), {}
    size = 7 if longer == "error" else 5
    for steps in (23, 30, 200):
        packer = PackTokens(size, lookahead=300, longer=longer)
        dataset = MergedDataset([Numbers("a", 20, single_process_fn=document, process_fn=packer)], seed=1)
        dataset.set_dataloader_states(states)
        for sample in islice(dataset, steps):
            states = {**states, **to_state(sample)}
            ids = sample["input_ids"].tolist()
            delivered.update(ids)
        whole = sum(delivered[value] // (1 + value % 7) for value in range(20))
        assert abs(report(states)["records/a"] - whole) <= (0 if longer == "error" else 3)
        assert report(states)["epochs/a"] == report(states)["records/a"] / 20


def packed(function, **ends):
    """Two sources of documents below a function over all."""
    sources = [Numbers(name, 40, weight, single_process_fn=document) for name, weight in (("a", 3), ("b", 1))]
    return MergedDataset(sources, seed=1, customized_yield_fn=function, **ends)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sources_of_a_packer_over_all_count_each_document_with_its_row(num_workers):
    """After each batch, also within a burst and after a resume within one: as a loop logs it from its rows."""
    states, logged = {}, Counter()
    for steps in (7, 12, 5):
        loader = StreamLoader(packed(PackTokens(7, lookahead=20)), 3, num_workers=num_workers, collate=mixed_collate)
        loader.load_state_dict(states)
        for batch in islice(loader, steps):
            for row in batch:
                names = [loader.dataset.source_names[number] for number in row["source_ids"].tolist()]
                sizes = np.diff(row["cu_seqlens"]).tolist()
                logged.update(f"samples/{name}" for name in names)
                logged.update({f"tokens/{name}": 0 for name in names})
                for name, size in zip(names, sizes, strict=True):
                    logged[f"tokens/{name}"] += size
            numbers = report(states := loader.state_dict())
            assert {name: numbers[name] for name in logged} == logged
            assert numbers["records/a"] == 40 * numbers["epochs/a"] == logged["samples/a"]
            assert "uncounted" not in numbers
            assert "of open bursts" not in describe_states(states)
    assert logged["samples/a"] > logged["samples/b"] > 0


def test_samples_of_which_sources_count_no_documents_yet_are_told():
    """Of a function over all with a state that does not say what came to its end: a burst counts when it is over."""
    loader, groups = StreamLoader(packed(Untold(7, lookahead=20)), 3, collate=mixed_collate), []
    for batch in islice(loader, 12):
        groups += batch
        numbers = report(states := loader.state_dict())
        assert 0 < numbers["uncounted"] <= numbers["samples"] == len(groups)
        if numbers["uncounted"] == numbers["samples"]:  # the first bursts
            assert numbers["samples/a"] == numbers["samples/b"] == 0
            assert "wanted/a" not in numbers
            assert "a             0       0       0  not known" in describe_states(states)
        counted = groups[: len(groups) - int(numbers["uncounted"])]
        assert sum(len(group["samples"]) for group in counted) == numbers["samples/a"] + numbers["samples/b"]
        line = f"without the records in {numbers['uncounted']} samples of open bursts"
        assert line.replace(" 1 samples", " 1 sample") in describe_states(states)
    assert numbers["samples/a"] > numbers["samples/b"] > 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_at_the_end_of_a_pass_the_sources_of_a_function_over_all_count_all_documents(num_workers):
    """Whatever it says; a resume in the midst of the last burst and the next pass change nothing."""
    for function in (PackTokens(7, lookahead=20), Untold(7, lookahead=20)):
        states = {}
        for epoch_pass, most in ((0, 15), (0, 99), (1, 99)):
            dataset = packed(function, cyclic=False, stop="all_exhausted")
            loader = StreamLoader(dataset, 1, num_workers=num_workers, collate=mixed_collate)
            loader.load_state_dict(states)
            for _ in islice(loader, most):
                pass
            numbers = report(states := loader.state_dict())
            if most == 99:
                assert "uncounted" not in numbers
                assert numbers["samples/a"] == numbers["records/b"] == 40 * (1 + epoch_pass)
                assert numbers["epochs/b"] == 1 + epoch_pass


def five(record):
    """Five tokens."""
    return {"input_ids": np.full(5, record["value"])}


def num_tokens(sample):
    return len(sample["input_ids"])


def scheduled(cost, scale):
    """Two sources of which one falls and one grows; their percents times a number are the same shares."""
    end = 400 if cost is None else 2000
    percents = {"a": [[0, 0.9 * scale], [end, 0.1 * scale]], "b": [[0, 0.1 * scale], [end, 0.9 * scale]]}
    sources = [Numbers(name, 2000, percent, single_process_fn=five) for name, percent in percents.items()]
    return MergedDataset(sources, seed=1, cost=cost, customized_yield_fn=PackTokens(10, 80))


@pytest.mark.parametrize("legs", [[30] * 8, [13, 70, 38, 5, 39, 24, 31]], ids=["first burst", "any"])
@pytest.mark.parametrize("change", ["size", "weights"])
@pytest.mark.parametrize("cost", [None, num_tokens])
def test_what_schedules_ask_for_is_what_clocks_gave(cost, change, legs):
    """Bursts that are drawn anew count twice, and the time of schedules goes back with the clocks."""
    states = {}
    for leg, rows in enumerate([*legs, 250]):
        own, size = [], 1 + leg % 2 if change == "size" else 1
        for rank in range(size):
            dataset = scheduled(cost, 1 + leg if change == "weights" else 1)
            dataset.set_data_parallel(size, rank)
            dataset.set_dataloader_states(through_json(states))
            own.append(dict(states))
            for row in islice(dataset, rows):
                own[-1].update(to_state(row))
        numbers = report(states := merge_states(*own))
        # The rows of a burst are not in the sequence of its samples.
        assert numbers["wanted/a"] == pytest.approx(numbers["achieved/a"], abs=0.05), leg


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_says_how_long_sources_took(num_workers):
    """Also where workers read them."""
    loader = StreamLoader(mixture(), 5, num_workers=num_workers, collate=mixed_collate)
    for _ in islice(loader, 6):
        pass
    times = loader.times()
    assert times.keys() == {"waiting_s", *(f"{what}_s/{name}" for what in ("reading", "waiting") for name in "ab")}
    assert times["waiting_s"] > 0
    assert times["reading_s/a"] > 0
    assert times["waiting_s/a"] == 0


def costly(rank):
    """What a rank reports, before and after a resume, and what its rows cost."""
    states, spent = {}, 0.0
    for steps in (0, 4 + 3 * rank, 5):
        packer = PackTokens(30, balance=Cost(linear=3, quadratic=1), rows=4)
        dataset = MergedDataset([Numbers("a", 90, single_process_fn=document)], customized_yield_fn=packer)
        dataset.set_dataloader_states(states)
        for row in islice(dataset, steps):
            sizes = np.diff(row["cu_seqlens"].numpy())
            spent += float((3 * sizes + sizes**2).sum())
            states = {**states, **to_state(row)}
        numbers = report(states, torch.distributed.group.WORLD)
    return spent, numbers["cost"], numbers["cost_max"], report(states).get("cost")


def test_ranks_report_what_their_rows_cost(on_ranks):
    """And the largest of all; a rank that has delivered nothing takes part, too."""
    (one, first, most, alone), (other, second, also_most, _) = on_ranks(costly)
    assert (first, second) == (one, other)
    assert most == also_most == max(one, other)
    assert one != other
    assert alone is None


def test_nothing_delivered_is_reported_too():
    assert report({}) == {"samples": 0, "tokens": 0, "steps": 0}


@pytest.mark.parametrize(("field", "value", "expected"), [("tokens", [1, 2, 3], 30), ("tokens", "a text", 0)])
def test_tokens_are_counted_by_either_name(field, value, expected):
    """As packed rows have them; a text that is called so has none."""
    source = Numbers("a", 10, single_process_fn=lambda record: {**record, field: value})
    states = {}
    for sample in MergedDataset([source], cyclic=False):
        states.update(to_state(sample))
    assert report(states)["tokens"] == expected
