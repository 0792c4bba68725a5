"""Profiles name the functions of the package in which the time goes, here and in workers."""

from pathlib import Path

import pytest

from streamdata import mixed_collate
from tests.benchmarks import jsonl, profiles
from tests.benchmarks.data import jsonl_rows
from tests.benchmarks.measure import drain, loading_time


def test_time_goes_where_the_work_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing is found in this process and, where it reads, in a worker; the timer stops with the work."""
    monkeypatch.setattr(profiles, "_LEAST_S", 0.3)
    place = jsonl_rows(tmp_path, 4000)
    alone = profiles.Work("rows", lambda: drain(iter(jsonl.merged(place))))
    loaded = profiles.Work("loaded", lambda: _loaded(place), has_workers=True)
    sampler = profiles.Sampler()
    found = dict(each for work in (alone, loaded) for each in profiles.profiled(sampler, work))
    assert list(found) == ["rows", "loaded: workers", "loaded: trainer"]
    parsing = "`shards/jsonl/shards.py: _parsed`"
    assert found["rows"][parsing] > 0.1 * found["rows"].total()
    assert found["loaded: workers"][parsing] > 0
    assert parsing not in found["loaded: trainer"]
    before = sampler.counts.total()
    drain(iter(jsonl.merged(place)))
    assert sampler.counts.total() == before


def _loaded(place: Path) -> None:
    loading_time(jsonl.merged(place, cyclic=True), mixed_collate, 300)
