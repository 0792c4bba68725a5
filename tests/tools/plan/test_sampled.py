"""What some records tell of a source."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    PackTokens,
    named,
    report,
    to_state,
)
from streamdata.mixing.tree import tree_of
from streamdata.tools.plan.course import Averages, Pulls
from streamdata.tools.plan.sampled import num_tokens, sample_source
from tests.shard_files import write_jsonl, write_tars
from tests.sources.own_streams import Counting
from tests.streams import Numbers
from tests.tools.plan.jobs import planned


def sampled(dataset, count=20):
    """Of the only source, with averages of its functions."""
    (node,) = tree_of(MergedDataset([dataset])).children
    averages = Averages()
    found = sample_source(node, count, [], averages)
    pulls = averages.pulls.get(node.path, Pulls(1.0, 1.0))
    return SimpleNamespace(**vars(found), each=pulls.each, tokens_per_sample=averages.tokens[node.path])


def with_ids(record):
    """As many token ids as its value says, up to 9."""
    return {"input_ids": np.arange(record["value"] % 10)}


@pytest.mark.parametrize(
    ("sample", "number"),
    [
        ({"input_ids": torch.arange(5)}, 5),
        ({"tokens": [1, 2, 3]}, 3),
        ({"input_ids": np.arange(4), "attention_mask": np.array([1, 1, 0, 0])}, 4),
        ({"input_ids": torch.zeros(2, 2, dtype=torch.int64)}, 4),
        ({"ids": [1, 2, 3], "sequence": [4], "token_ids": [5]}, None),
        ({"text": "none"}, None),
    ],
)
def test_tokens_are_counted_where_there_are_ids(sample, number):
    """By the rule of states: `report` of a run counts as many."""
    assert num_tokens(sample) == number
    states = to_state(next(iter(MergedDataset([named([sample], name="a", percent=1)]))))
    assert report(states)["tokens/a"] == (number or 0)


def test_a_text_that_is_called_tokens_has_none():
    """As in states."""
    assert sampled(named([{"tokens": "three words here"}] * 3, name="a", percent=1)).tokens is None


def test_the_mean_of_some_records_is_near_that_of_all():
    """Of as many as were asked for."""
    found = sampled(Numbers("a", 1000, single_process_fn=with_ids), 200)
    assert found.num_records == 200
    assert found.tokens == pytest.approx(4.5, abs=0.5)


def test_a_packer_takes_several_records_for_a_sample():
    """As many as fill its rows; tokens are counted before it."""
    packed = sampled(Numbers("a", 1000, single_process_fn=with_ids, process_fn=PackTokens(90, lookahead=50)), 100)
    assert packed.tokens == pytest.approx(4.5, abs=0.7)
    assert packed.each == pytest.approx(20, rel=0.2)
    assert packed.tokens_per_sample == pytest.approx(90, rel=0.1)


def test_a_filter_and_a_splitter_change_how_many_samples_there_are():
    """Half of the records are dropped; each gives three samples."""
    half = sampled(Numbers("a", 1000, single_process_fn=lambda r: r if r["value"] % 2 else None), 400)
    assert half.each == pytest.approx(2, rel=0.15)
    assert sampled(Numbers("a", 100, single_process_fn=lambda r: [r, r, r])).each == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", ["tar", "lines", "iterable", "rows"])
def test_every_kind_of_source_is_sampled(tmp_path, kind):
    """Without their order, and with the fields that functions expect."""
    from streamdata.sources import record_rng

    seen = []

    def function(record):
        seen.append(record["__datasetname__"])
        record_rng(record)
        return record

    options = {"name": "a", "percent": 1, "single_process_fn": function}
    sources = {
        "tar": lambda: MetaDistributedWebDataset(write_tars(tmp_path / "a", [9, 4]), **options),
        "lines": lambda: JsonlIterableDataset(write_jsonl(tmp_path / "a", [9, 4]), **options),
        "iterable": lambda: Counting(lanes="stride", **options),
        "rows": lambda: Numbers("a", 13, single_process_fn=function),
    }
    assert sampled(sources[kind](), 6).num_records == 6
    assert seen == ["a"] * 6


def test_a_yield_function_takes_several_draws():
    """So a run takes more of its sources than it delivers."""

    def pairs(samples):
        for sample in samples:
            yield {**sample, "second": next(samples)["value"]}

    plan = planned(MergedDataset([Numbers("a", 100)], customized_yield_fn=pairs), 50, sample=10)
    assert plan.sources[0].samples == pytest.approx(100)
    assert "a sample takes 2 draws" in plan.notes[-1]


def test_a_function_that_fails_is_named():
    """As a run would; `max_bad` forgives as many."""

    def fails(record):
        raise KeyError(record["value"])

    with pytest.raises(KeyError) as caught:
        sampled(Numbers("a", 20, single_process_fn=fails))
    assert "source 'a': single_process_fn failed" in caught.value.__notes__[0]
    assert sampled(Numbers("a", 20, single_process_fn=fails, max_bad=50)).tokens is None


def test_a_yield_function_is_measured_within_a_burst_too():
    """Of 11 outputs, three for each burst of two samples, the last one is in the middle of a burst."""

    def thirds(samples):
        for first, second in zip(samples, samples, strict=False):
            yield from (first, second, dict(second))

    plan = planned(MergedDataset([Numbers("a", 1000)], customized_yield_fn=thirds), 300, sample=11)
    assert plan.sources[0].samples == pytest.approx(200)
