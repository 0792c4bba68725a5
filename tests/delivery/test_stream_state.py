"""The entry of a checkpoint: saved and loaded by torch.distributed.checkpoint, by other ranks than saved it."""

import os
from collections import Counter
from functools import partial

import pytest
import torch.distributed as dist

from streamdata import MergedDataset, StateError, StreamLoader, StreamState
from tests.streams import Numbers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed.checkpoint")

EPOCH = Counter({("a", number): 1 for number in range(23)} | {("b", number): 1 for number in range(31)})


class Named(Numbers):
    """Numbers that say whose they are."""

    def __getitem__(self, index: int) -> dict:
        return {"name": self.name, **super().__getitem__(index)}


def make() -> MergedDataset:
    """A stream that ends."""
    return MergedDataset([Named("a", 23), Named("b", 31)], cyclic=False, stop="all_exhausted", seed=4)


def taken(loader: StreamLoader, count: int = 1000) -> list:
    """The records of its next batches, without those that are repeated."""
    found = []
    for number, batch in enumerate(loader, 1):
        rows = zip(batch["name"], batch["value"].tolist(), batch["__padding__"].tolist(), strict=True)
        found += [(name, value) for name, value, is_padding in rows if not is_padding]
        if number == count:
            break
    return found


def loader_of(dataset: MergedDataset) -> StreamLoader:
    return StreamLoader(dataset, 2, uneven="pad")


def save(folder, rank) -> tuple:
    """Rank 1 is one batch ahead; an asynchronous save writes while it goes on."""
    import torch.distributed.checkpoint as dcp

    loader = loader_of(make())
    before = taken(loader, 2 + rank)
    entry = {"stream": StreamState(loader), "step": 2}
    dcp.save(entry, checkpoint_id=folder / "at-once")
    writing = dcp.async_save(entry, checkpoint_id=folder / "later")
    after = taken(loader)
    writing.result()
    return before, after


def load(folder, rank) -> list:
    """The rest, by three ranks; they save before anything was delivered, and go on from that too."""
    import torch.distributed.checkpoint as dcp

    rests = []
    for name in ("at-once", "later"):
        loader = loader_of(make())
        dcp.load({"stream": StreamState(loader), "step": 0}, checkpoint_id=folder / name)
        if name == "later":
            dcp.save({"stream": StreamState(loader), "step": 2}, checkpoint_id=folder / "again")
        rests.append(taken(loader))
    return rests


def test_a_checkpoint_is_saved_by_two_ranks_and_loaded_by_one_and_by_three(tmp_path, on_ranks):
    """What was delivered before and after is the epoch, each record once."""
    import torch.distributed.checkpoint as dcp

    saved = on_ranks(partial(save, tmp_path))
    before = Counter(record for part, _ in saved for record in part)
    assert before + Counter(record for _, rest in saved for record in rest) == EPOCH
    for rests in zip(*on_ranks(partial(load, tmp_path), 3), strict=True):
        assert before + Counter(record for rest in rests for record in rest) == EPOCH
    for name in ("at-once", "later", "again"):
        loader = loader_of(make())
        dcp.load({"stream": StreamState(loader), "step": 0}, checkpoint_id=tmp_path / name)
        assert before + Counter(taken(loader)) == EPOCH


def in_a_mesh(folder, rank) -> list:
    """Two processes of one replica."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    dataset = make()
    dataset.set_data_parallel(mesh=mesh)
    loader = loader_of(dataset)
    before = taken(loader, 3)
    dcp.save({"stream": StreamState(loader)}, checkpoint_id=folder / "mesh")
    return before


def test_processes_of_one_replica_read_and_save_the_same(tmp_path, on_ranks):
    """A checkpoint has their states once."""
    import torch.distributed.checkpoint as dcp

    one, other = on_ranks(partial(in_a_mesh, tmp_path))
    assert one == other
    loader = loader_of(make())
    dcp.load({"stream": StreamState(loader)}, checkpoint_id=tmp_path / "mesh")
    assert Counter(one) + Counter(taken(loader)) == EPOCH


def test_a_checkpoint_without_the_entry_is_an_error_of_dcp(tmp_path):
    """It says which key is missing."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    dcp.save({"step": 2}, checkpoint_id=tmp_path)
    with pytest.raises(CheckpointException, match=r"stream\.states"):
        dcp.load({"stream": StreamState(loader_of(make()))}, checkpoint_id=tmp_path)


@pytest.mark.parametrize("entry", [{}, {"states": None}, {"states": "[]"}, {"states": "x"}, {"cursor/0/0/0/0/a": {}}])
def test_an_entry_without_states_is_an_error(entry):
    """It would be a fresh start."""
    with pytest.raises(StateError, match="StreamState: expected states as text under 'states'"):
        StreamState(loader_of(make())).load_state_dict(entry)


def test_a_checkpoint_from_before_the_first_batch_begins_at_the_start():
    """There is nothing to go on from."""
    loader = loader_of(make())
    loader.load_state_dict({})
    StreamState(loader).load_state_dict(StreamState(loader_of(make())).state_dict())
    assert Counter(taken(loader)) == EPOCH


def accelerated(folder, rank) -> tuple:
    """As Accelerate's users write it."""
    # It asks for these, though there is a process group.
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    assert (accelerator.num_processes, accelerator.process_index) == (2, rank)
    loader = loader_of(make())
    assert accelerator.prepare(loader) is loader
    accelerator.register_for_checkpointing(StreamState(loader))
    before = taken(loader, 3)
    accelerator.save_state(str(folder / "accelerated"))
    accelerator.wait_for_everyone()  # for the main process to have written it
    after = taken(loader)
    accelerator.load_state(str(folder / "accelerated"))
    assert taken(loader) == after
    return before, after, sorted(path.name for path in (folder / "accelerated").glob("custom*"))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_accelerate_carries_the_states_of_all_ranks(tmp_path, on_ranks):
    """It writes one file, of its main process; ranks read each record once through `prepare`."""
    found = on_ranks(partial(accelerated, tmp_path))
    assert [files for _, _, files in found] == [["custom_checkpoint_0.pkl"]] * 2
    assert sum((Counter(before + after) for before, after, _ in found), Counter()) == EPOCH
    assert not dist.is_initialized()
