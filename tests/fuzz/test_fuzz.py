"""A few damaged files of each kind. `python -m tests.fuzz` reads many more, with bounds of memory and time."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamdata import ShardError
from tests.cpu import cpu_within
from tests.fuzz import campaign
from tests.fuzz.campaign import run
from tests.fuzz.case import Kind, outcome_of
from tests.fuzz.kinds import KINDS
from tests.fuzz.mutation import mutate

OURS = [kind for kind in KINDS.values() if not kind.is_foreign]
FOREIGN = [kind for kind in KINDS.values() if kind.is_foreign]
SLOW = {"recipe": 2, "state-json": 8, "state-file": 8}
"""Examples of kinds whose reading takes more than some milliseconds."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """No index is written into the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMDATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_damage_ends_in_an_error_of_ours_or_does_not_matter(tmp_path_factory, kind):
    """Within a second, and twice the same."""

    @settings(max_examples=SLOW.get(kind.name, 6), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def read(rng):
        with cpu_within(1):
            assert outcome_of(kind, tmp_path_factory.mktemp(kind.name), kind.case(rng)) in ("fine", "error")

    read()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_sound_files_are_read(tmp_path, kind):
    """Else damage would not be what ends in an error."""
    for number, files in enumerate(kind.made()):
        assert outcome_of(kind, tmp_path / str(number), files) == "fine"


@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: kind.name)
def test_what_c_libraries_parse_is_read_in_children(tmp_path, kind):
    """Each of which may die; all cases are counted."""
    assert sum(run(kind, range(4), 0, tmp_path).outcomes.values()) == 4


def for_ever(_):
    """Computes on and on."""
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "outcome"),
    [
        (lambda _: 1, "fine"), (lambda _: 1 // 0, "fault"), (lambda _: os.abort(), "crash"), (for_ever, "slow"),
        (lambda _: bytearray(1 << 30), "memory"), (lambda _: (_ for _ in ()).throw(ShardError("x")), "error"),
    ],
)  # fmt: skip
def test_whatever_a_case_does_is_told(tmp_path, monkeypatch, read, outcome):
    """And those behind it are read."""
    monkeypatch.setattr(campaign, "_KILL_SECONDS", 0.1)
    kind = Kind("x", "a", lambda: [{"a": b"x"}], read)
    report = run(kind, range(3), 0, tmp_path)
    assert report.outcomes == {outcome: 3}
    assert len(report.found) == (outcome not in ("fine", "error"))


@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_any_content_can_be_changed(content, rng):
    """Also none at all."""
    assert isinstance(mutate(content, rng, (b"word",)), bytes)
