"""Rank and world size: where they come from, and what is refused."""

import math

import pytest

from streamdata import MergedDataset, to_state
from streamdata.run import DataParallel, Lane, find_data_parallel
from streamdata.run.topology import data_parallel_of, members_of
from tests.streams import Numbers


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


@pytest.fixture
def mesh_of():
    """A mesh as one of its processes sees it, without the others."""
    distributed = pytest.importorskip("torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def make(rank, shape, names=None):
        if distributed.is_initialized():
            distributed.destroy_process_group()
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=math.prod(shape))
        return init_device_mesh("cpu", shape, mesh_dim_names=names)

    yield make
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("shape", "names", "dims", "expected"),
    [
        ((2, 3), ("dp", "tp"), None, [0, 0, 0, 1, 1, 1]),
        ((2, 3), ("pp", "dp"), None, [0, 1, 2, 0, 1, 2]),
        ((2, 2, 2), ("dp_replicate", "dp_shard", "cp"), None, [0, 0, 1, 1, 2, 2, 3, 3]),
        ((2, 2, 2), ("dp_replicate", "tp", "dp_shard"), None, [0, 1, 0, 1, 2, 3, 2, 3]),
        ((2, 3), ("rows", "columns"), "columns", [0, 1, 2, 0, 1, 2]),
        ((2, 3), ("dp", "ep"), ("dp", "ep"), [0, 1, 2, 3, 4, 5]),
        ((4,), ("anything",), None, [0, 1, 2, 3]),
        ((4,), None, None, [0, 1, 2, 3]),
    ],
)
def test_ranks_that_differ_in_other_dimensions_alone_are_one_replica(mesh_of, shape, names, dims, expected):
    """In the sequence of the mesh's dimensions."""
    found = [data_parallel_of(mesh_of(rank, shape, names), dims) for rank in range(math.prod(shape))]
    assert [group.dp_rank for group in found] == expected
    assert {group.dp_size for group in found} == {max(expected) + 1}


def test_a_submesh_is_taken_whole(mesh_of):
    """As `mesh["dp"]` gives it."""
    assert data_parallel_of(mesh_of(4, (2, 3), ("dp", "tp"))["dp"], None) == DataParallel(dp_size=2, dp_rank=1)


@pytest.mark.parametrize(
    ("names", "dims", "message"),
    [
        (("dp", "ep"), None, "not clear which of the mesh's dimensions"),
        (("dp", "efsdp"), None, "not clear which of the mesh's dimensions"),
        (("dp_replicate", "fsdp", "tp"), None, "not clear which"),
        (("fsdp",), None, "not clear which"),
        (("dp_shard_cp",), None, "not clear which"),
        (("dp_cp", "tp"), None, "not clear which"),
        (("tp", "pp"), None, "expected dims to be some of the mesh's dimensions"),
        (("tp",), None, r"call set_data_parallel\(1, 0\)"),
        (None, None, "not clear which"),
        (("dp", "tp"), "dq", r"expected dims to be some of the mesh's dimensions \('dp', 'tp'\), got 'dq'"),
        (("dp", "tp"), (), "expected dims to be some"),
    ],
)
def test_a_mesh_must_say_which_dimensions_are_data_parallel(mesh_of, names, dims, message):
    """Ranks of an expert dimension, say, may read the same samples or not."""
    with pytest.raises(ValueError, match=message):
        data_parallel_of(mesh_of(0, (2,) * len(names or "ab"), names), dims)


@pytest.mark.parametrize(
    ("shape", "names", "expected"),
    [
        ((2, 2), ("dp", "cp"), [[0, 1], [0, 1], [2, 3], [2, 3]]),
        ((2, 2), ("tp", "batch"), [[0, 2], [1, 3], [0, 2], [1, 3]]),
        ((2, 1, 2), ("dp_replicate", "dp_shard", "tp"), [[0, 1], [0, 1], [2, 3], [2, 3]]),
        ((2, 2), ("pp", "tp"), [[0, 1, 2, 3]] * 4),
        ((4,), ("dp",), [[0], [1], [2], [3]]),
    ],
)
def test_members_are_the_ranks_of_one_replica(mesh_of, shape, names, expected):
    """Those that differ along other dimensions than data-parallel ones."""
    assert [members_of(mesh_of(rank, shape, names)) for rank in range(math.prod(shape))] == expected


@pytest.mark.parametrize("names", [("dp", "ep"), ("dp_cp", "tp"), ("fsdp", "tp"), ("anything",), None])
def test_members_of_a_mixed_mesh_are_refused(mesh_of, names):
    """Nobody knows whether these ranks read the same."""
    with pytest.raises(ValueError, match=r"GroupLoader: it is not clear which .*\n.*process group of the ranks"):
        members_of(mesh_of(0, (2,) * len(names or "ab"), names))


def test_a_mesh_comes_before_the_process_group_and_arguments_before_it(mesh_of):
    """What was said last counts; both at once is an error."""
    mesh = mesh_of(3, (2, 2), ("dp", "tp"))
    dataset = MergedDataset([Numbers("a", 9)])
    assert lane_of(dataset) == (4, 3)
    dataset.set_data_parallel(mesh=mesh)
    assert lane_of(dataset) == (2, 1)
    dataset.set_data_parallel(3, 2)
    assert lane_of(dataset) == (3, 2)
    for arguments in ({"dp_size": 2, "mesh": mesh}, {"dp_size": 2}, {"dims": "dp"}, {}):
        with pytest.raises(ValueError, match="expected dp_size and dp_rank, or a mesh"):
            dataset.set_data_parallel(**arguments)


def lane_of(dataset):
    """As its samples have it."""
    sample = next(iter(dataset))
    (header,) = (value for key, value in to_state(sample).items() if key.startswith("generation/"))
    return header["dp_size"], sample["__dprank__"]
