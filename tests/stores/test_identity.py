import shutil
from itertools import islice

import numpy as np
import pytest

from streamdata import MergedDataset, StateError, to_state
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.datasets.window_datasets import SeqDataset
from streamdata.stores.factory import open_store
from streamdata.stores.writer import StoreWriter
from tests.stores.tiny_stores import write, write_old_bin
from tests.streams import identity


def mixture(*arguments, **options):
    """A mixture of one store."""
    dataset = DatasetFactory.load(*arguments, **options)
    dataset.name, dataset.percent = "tokens", 1
    return MergedDataset([dataset], cyclic=True)


def states_of(dataset, count=5):
    states = {}
    for sample in islice(dataset, count):
        states.update(to_state(sample))
    return states


@pytest.mark.parametrize("storage_type", ["bin", "h5", "megatron"])
def test_a_store_in_another_place_resumes(tmp_path, storage_type):
    """Exactly: paths are no part of what it is."""
    write(storage_type, tmp_path / "a")
    whole = [identity(sample) for sample in islice(mixture("seq", tmp_path / "a", 6), 12)]
    states = states_of(mixture("seq", tmp_path / "a", 6))
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = mixture("seq", tmp_path / "b", 6)
    moved.set_dataloader_states(states)
    assert [identity(sample) for sample in islice(moved, 7)] == whole[5:]


@pytest.mark.parametrize("change", ["window", "stride", "train_type", "tokens", "shards", "format"])
def test_a_resume_with_another_store_or_other_windows_is_refused(tmp_path, change):
    """Also where there are as many of them: eight of twelve tokens, ten apart."""
    text = np.arange(83)

    def make(window=12, stride=10, train_type="seq", tokens=text, shard=1 << 20, storage_type="bin"):
        path = tmp_path / f"{tokens[0]}{shard}{storage_type}"
        if not path.exists():
            keys = {"sequence": "uint16", "loss_mask": "bool", "position_ids": "int32"}
            keys = {"sequence": keys["sequence"]} if storage_type == "megatron" else keys
            with StoreWriter(storage_type, path, keys, max_tokens_per_shard=shard) as writer:
                writer.extend({key: tokens > 0 if key == "loss_mask" else tokens for key in keys}, [40, len(text) - 40])
        return mixture(train_type, path, window, stride)

    states = states_of(make())
    make().set_dataloader_states(states)
    other = make(**{
        "window": {"window": 11}, "stride": {"stride": 9, "window": 15}, "train_type": {"train_type": "sft"},
        "tokens": {"tokens": text[::-1]}, "shards": {"shard": 50}, "format": {"storage_type": "megatron"},
    }[change])  # fmt: skip
    assert len(other.datasets[0]) == 8
    with pytest.raises(StateError, match="source 'tokens' has another order"):
        other.set_dataloader_states(states)


def test_an_older_store_is_known_by_its_names_and_sizes(tmp_path):
    """It has no checksums."""
    for name, sizes in (("a", (9, 5)), ("b", (9, 5)), ("c", (5, 9))):
        for number, size in enumerate(sizes):
            write_old_bin(tmp_path / name / f"shard_000{number}", {"sequence": np.arange(size)})
    first, same, other = (open_store(tmp_path / name).identity for name in "abc")
    assert first == same != other


def test_the_identity_is_short(tmp_path):
    """It is in the states."""
    assert len(SeqDataset(write("bin", tmp_path), 6).source_identity) < 80
