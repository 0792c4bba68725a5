"""Datasets over stores under a plain DataLoader, and as sources of a MergedDataset."""

from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import MergedDataset, mixed_collate, to_state
from streamdata.stores.datasets.record_datasets import DatasetFactory, dpo_collate, grpo_collate
from streamdata.stores.datasets.window_datasets import SFTDataset
from streamdata.stores.factory import open_store
from streamdata.stores.h5_store import H5Store
from streamdata.stores.writer import StoreWriter
from tests.stores.tiny_stores import KEYS, write, write_old_h5, write_rows
from tests.streams import assert_exact_resume, delivered, loaded, plain, through_json

METHODS = [(0, None), (1, "fork"), (3, "forkserver"), (2, "fork")]


def named(dataset, name, percent=1.0):
    """A dataset as a recipe leaves it."""
    dataset.name, dataset.percent = name, percent
    return dataset


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize(("num_workers", "method"), METHODS)
def test_a_plain_loader_reads_every_kind_of_store(tmp_path, num_workers, method):
    """In any number of workers, however they are started: what the dataset itself gives."""
    write_old_h5(tmp_path / "chunked" / "data_0.h5", {"sequence": [list(range(60))]}, chunks=(7,))
    sources = [DatasetFactory.load("seq", tmp_path / "chunked", 6)]
    sources += [DatasetFactory.load("seq", write(kind, tmp_path / kind), 6) for kind in ("bin", "h5", "megatron")]
    dataset = MixedUp(sources)
    loader = DataLoader(
        dataset, 3, num_workers=num_workers, multiprocessing_context=method, collate_fn=mixed_collate, shuffle=False
    )
    for _ in range(2 if method == "fork" else 1):
        assert plain([sample for batch in loader for sample in batch]) == plain(
            [dataset[i] for i in range(len(dataset))]
        )


class MixedUp:
    """Several datasets as one, so that workers are started only once."""

    def __init__(self, datasets):
        self.datasets = datasets

    def __len__(self):
        return sum(map(len, self.datasets))

    def __getitem__(self, index):
        count = len(self.datasets)
        return self.datasets[index % count][index // count % len(self.datasets[index % count])]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_used_store_and_a_shared_one_go_to_workers(tmp_path, method):
    """Open handles stay behind, shared memory comes along."""
    write_old_h5(tmp_path / "data_0.h5", {key: [[1] * 40] for key in KEYS["sft"]}, chunks=(7,))
    used, shared = H5Store().load(tmp_path), H5Store().load(tmp_path).share_memory_()
    dataset = MixedUp([SFTDataset(store=store, window_size=6) for store in (used, shared)])
    expected = plain([dataset[number] for number in range(len(dataset))])
    loader = DataLoader(dataset, None, num_workers=1, multiprocessing_context=method)
    assert plain(list(loader)) == expected


def test_torchs_own_collate_makes_tensors_of_windows(tmp_path):
    """A batch of windows needs nothing of ours."""
    loader = DataLoader(DatasetFactory.load("sft", write("bin", tmp_path, "sft"), 6), batch_size=4)
    batch = next(iter(loader))
    assert {key: tuple(value.shape) for key, value in batch.items()} == dict.fromkeys(
        ("input_ids", "target_ids", "loss_mask", "position_ids"), (4, 6)
    )


@pytest.mark.parametrize(("train_type", "collate"), [("dpo", dpo_collate), ("grpo", grpo_collate)])
def test_records_go_from_store_to_batch(tmp_path, train_type, collate):
    """By their own collate function."""
    dataset = DatasetFactory.load(train_type, write("h5", tmp_path, train_type), None)
    batches = list(DataLoader(dataset, 4, collate_fn=collate))
    assert len(batches) == 3
    assert all(len(value) == 4 for batch in batches for value in batch.values())


def mixture(directory, **options):
    """A source of every kind."""

    def make():
        return MergedDataset(
            [
                named(DatasetFactory.load("seq", directory / "bin", 6, documents=True), "seq", 2),
                named(DatasetFactory.load("seq", directory / "megatron", 5, 2), "megatron"),
                named(DatasetFactory.load("sft", directory / "rows", 8), "sft"),
                named(DatasetFactory.load("grpo", directory / "h5", 3), "grpo"),
            ],
            seed=3,
            **options,
        )

    return make


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores for a mixture."""
    directory = tmp_path_factory.mktemp("stores")
    write("bin", directory / "bin")
    write("megatron", directory / "megatron")
    write("h5", directory / "h5", "grpo")
    write_rows("bin", directory / "rows", [8, 8, 8, 11])
    return directory


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_mixture_of_stores_resumes_exactly(stores, num_workers):
    """From every step, in the order of an uninterrupted run."""
    assert_exact_resume(mixture(stores), steps=12, beyond=12, num_workers=num_workers)


def test_a_mixture_of_stores_is_read_exactly_once(stores):
    """Over ranks and workers, every window and every record."""
    make = mixture(stores, cyclic=False, stop="all_exhausted")
    counts = delivered(make, 2, 3)
    assert set(counts.values()) == {1}
    assert len(counts) == sum(len(dataset) for dataset in make().datasets)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.long)])
def test_a_mixture_of_stores_resumes_in_real_workers(stores, method):
    """As in simulated ones; the state goes through JSON."""
    want = [plain(batch) for batch in islice(loaded(mixture(stores)(), 2, 3), 8)]
    states, got = {}, []
    for leg in (3, 5):
        dataset = mixture(stores)()
        dataset.set_dataloader_states(through_json(states))
        loader = DataLoader(dataset, 3, num_workers=2, collate_fn=mixed_collate, multiprocessing_context=method)
        for batch in islice(loader, leg):
            got.append(plain(batch))
            states.update(to_state(batch))
    assert got == want


def test_padding_comes_after_the_state_was_taken(stores):
    """In the trainer: samples carry their state, padded batches do not."""
    source = named(DatasetFactory.load("grpo", stores / "h5", 3), "grpo")
    batch = next(iter(DataLoader(MergedDataset([source]), 4, collate_fn=mixed_collate)))
    assert to_state(batch)
    assert grpo_collate(batch)["rewards"].shape == (4, 3)


def test_starting_does_not_read_tokens_or_offsets(tmp_path, monkeypatch):
    """Only meta.json and sizes, so that a large store starts as fast as a small one."""
    with StoreWriter("bin", tmp_path, KEYS["seq"]) as writer:
        writer.extend({"sequence": [1] * 60}, [1, 2, 3] * 10)
    monkeypatch.setattr("streamdata.stores.stored_values.LocalShard", lambda path: pytest.fail(f"{path} was opened"))
    assert (len(DatasetFactory.load("seq", tmp_path, 6)), open_store(tmp_path).num_records) == (9, 30)
