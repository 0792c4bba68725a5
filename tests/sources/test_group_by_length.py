import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamdata import GroupByLength, MergedDataset
from streamdata.errors import StateError
from tests.sources.test_pack_tokens import LONGER, documents, lengths_of, run, settings_of, tokens, wanted
from tests.streams import Numbers, assert_exact_resume


@given(lengths_of, settings_of)
def test_each_token_is_in_one_group_and_no_group_is_too_large(lengths: list[int], settings: Any) -> None:
    """Counted as a multiset, with what lies beside the tokens; the longest, times their number, is what is bounded."""
    most, lookahead, longer = settings
    groups = list(GroupByLength(most, lookahead, longer=longer)(iter(documents(lengths))))
    samples = [sample for group in groups for sample in group["samples"]]
    ids = [token for sample in samples for token in np.asarray(sample["input_ids"]).tolist()]
    assert Counter(ids) == Counter(wanted(lengths, most, longer))
    for group in groups:
        sizes = [len(sample["input_ids"]) for sample in group["samples"]]
        assert 0 < max(sizes) * len(sizes) <= most
    for sample in samples:
        assert sample["labels"].tolist() == [token % 100 for token in sample["input_ids"]]
        assert sample["name"] == f"d{sample['input_ids'][0] // 100}"


@given(lengths_of, settings_of)
def test_a_resume_after_each_group_gives_the_rest(lengths: list[int], settings: Any) -> None:
    """The same groups and the same cursors, whichever of them it begins at."""
    most, lookahead, longer = settings
    function, samples = GroupByLength(most, lookahead, longer=longer), documents(lengths)
    whole = run(function, samples)
    for index, (_, cursor) in enumerate(whole):
        assert run(function, samples, cursor) == whole[index + 1 :]


def test_groups_are_of_alike_length_in_the_order_of_their_first_samples() -> None:
    """Twelve samples, of which four and eight are alike; a whole sample is passed on as it came."""
    samples = documents([2, 8, 2, 2, 8, 2, 2, 2, 8, 2, 8, 2])
    groups = [group["samples"] for group in GroupByLength(16)(iter(samples))]
    assert [[int(sample["name"][1:]) for sample in group] for group in groups] == [
        [0, 2, 3, 5, 6, 7, 9, 11],
        [1, 4],
        [8, 10],
    ]
    assert groups[1][0]["labels"] is samples[1]["labels"]


@given(st.lists(st.integers(1, 8), max_size=40))
def test_a_lookahead_of_one_groups_in_sequence(lengths: list[int]) -> None:
    """A group ends where the next sample would make it too large."""
    expected: list[list[int]] = []
    for length in lengths:
        if not expected or max(*expected[-1], length) * (len(expected[-1]) + 1) > 8:
            expected.append([])
        expected[-1].append(length)
    groups = GroupByLength(8, lookahead=1)(iter(documents(lengths)))
    assert [[len(sample["input_ids"]) for sample in group["samples"]] for group in groups] == expected


def test_little_of_its_batches_is_padding() -> None:
    """Lengths as of texts, a hundred groups planned at once; in their sequence most of a batch would be padding."""
    lengths = np.random.default_rng(0).lognormal(np.log(400), 1.2, 3000).astype(int).clip(1, 8192).tolist()

    def share(lookahead: int) -> float:
        groups = list(GroupByLength(8192, lookahead)({"input_ids": np.zeros(length, int)} for length in lengths))
        sizes = [[len(sample["input_ids"]) for sample in group["samples"]] for group in groups]
        return sum(map(sum, sizes)) / sum(max(size) * len(size) for size in sizes)

    assert share(1000) > 0.97
    assert share(1) < 0.6


@pytest.mark.each_value
@pytest.mark.parametrize("longer", LONGER)
@pytest.mark.parametrize("place", ["process_fn", "customized_yield_fn"])
def test_a_stream_of_groups_resumes_exactly(place: str, longer: Any) -> None:
    """From every step, in a source and over a mixture."""
    function = GroupByLength(8, 10, longer=longer)

    def make() -> MergedDataset:
        own = {"process_fn": function} if place == "process_fn" else {}
        sources = [Numbers(name, size, 1, single_process_fn=tokens, **own) for name, size in (("a", 30), ("b", 7))]
        return MergedDataset(sources, seed=3, customized_yield_fn=None if own else function)

    assert_exact_resume(make, steps=15, beyond=15, num_workers=2)


def test_samples_of_a_group_have_no_state_of_their_own() -> None:
    """The group has that of all of them."""
    dataset = MergedDataset([Numbers("a", 30, 1, single_process_fn=tokens)], customized_yield_fn=GroupByLength(30))
    (group,) = islice(dataset, 1)
    assert "__cursor__" in group
    assert all(sample.keys().isdisjoint(("__cursor__", "__states__")) for sample in group["samples"])
    assert all(sample["__datasetname__"] == "a" for sample in group["samples"])


def test_settings_and_states_are_checked_as_of_packing() -> None:
    """By its own name."""
    with pytest.raises(ValueError, match="GroupByLength: max_tokens is 0, expected a whole number of at least 1"):
        GroupByLength(0)
    with pytest.raises(ValueError, match="GroupByLength: expected at most 2 tokens, got 3"):
        list(GroupByLength(2)(iter([{"input_ids": torch.arange(3)}])))
    with pytest.raises(StateError, match="GroupByLength: the state was written with max_tokens=2, the run has 4"):
        GroupByLength(4).load_state_dict(json.loads(json.dumps(GroupByLength(2).state_dict())))
