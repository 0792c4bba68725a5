"""Rank and world size: where they come from, and what is refused."""

import pytest

from streamdata.run import DataParallel, Lane, find_data_parallel


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Neither RANK nor WORLD_SIZE is set."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_without_a_launcher_there_is_one_replica():
    """Neither torch.distributed nor the environment says anything."""
    assert find_data_parallel() == DataParallel(dp_size=1, dp_rank=0)


def test_the_environment_is_read(monkeypatch):
    """Torchrun sets RANK and WORLD_SIZE."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert find_data_parallel() == DataParallel(dp_size=8, dp_rank=3)


def test_a_process_group_comes_before_the_environment(monkeypatch):
    """torch.distributed knows best."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(distributed, "get_rank", lambda: 2)
    assert find_data_parallel() == DataParallel(dp_size=4, dp_rank=2)


def test_a_world_without_a_rank_is_an_error(monkeypatch):
    """Otherwise every process would read rank 0's data."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ValueError, match="WORLD_SIZE is 8 but RANK is not set"):
        find_data_parallel()


@pytest.mark.parametrize(("rank", "size"), [("x", "2"), ("2", "2"), ("-1", "2")])
def test_an_unusable_rank_is_an_error(monkeypatch, rank, size):
    """Not a number, or outside the world."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(ValueError, match=r"expected .* got"):
        find_data_parallel()


def test_lanes_are_numbered_rank_by_rank():
    """Lane l of L, l = rank * num_workers + worker."""
    lane = Lane(dp_size=3, dp_rank=2, num_workers=4, worker=1)
    assert (lane.index, lane.count) == (9, 12)
