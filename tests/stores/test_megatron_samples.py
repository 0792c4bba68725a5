import json
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from streamdata import MergedDataset, named
from streamdata.errors import StoreError
from streamdata.stores.datasets.megatron_samples import SampleRule, build_indices
from streamdata.stores.datasets.record_datasets import DatasetFactory
from streamdata.stores.datasets.window_datasets import SeqDataset, SFTDataset
from tests.stores.tiny_stores import write, write_old_megatron
from tests.streams import assert_exact_resume, plain

RECORDED = json.loads(Path(__file__).with_name("megatron_core_0_16_1.json").read_text())
EOD = 3
OPTIONS = {"compat": "megatron", "eod_token": EOD}
MARKS = {"eod_mask_loss": True, "reset_position_ids": True, "reset_attention_mask": True}
RULES = {
    "one epoch": SampleRule(0, 7, 4, None, 1234),
    "epochs shuffled together": SampleRule(0, 7, 4, 16, 1234),
    "the last epoch apart": SampleRule(0, 7, 4, 7, 7),
    "some documents": SampleRule(2, 6, 3, 11, 42),
}


def pair(directory, lengths=tuple(RECORDED["lengths"])):
    """Documents whose tokens count up, modulo 5."""
    sequences = [[(number + place) % 5 for place in range(length)] for number, length in enumerate(lengths)]
    write_old_megatron(directory / "name", sequences, 8, "uint16", list(range(len(lengths) + 1)))
    return directory / "name"


def theirs(prefix, rule):
    """The GPTDataset of megatron-core over the same documents."""
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    split = pytest.importorskip("megatron.core.datasets.utils").Split.train
    tokenizer = type("Tokenizer", (), {"vocab_size": 5, "eod": EOD, "pad": -1, "unique_identifiers": {}})()
    resets = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}
    config = gpt.GPTDatasetConfig(
        random_seed=rule.seed,
        sequence_length=rule.window_size,
        tokenizer=tokenizer,
        create_attention_mask=True,
        **resets,
    )
    config.mock = False
    documents = np.arange(rule.first, rule.last, dtype=np.int32)
    dataset = indexed.IndexedDataset(str(prefix))
    return gpt.GPTDataset(dataset, str(prefix), documents, rule.num_samples, split, config)


def ours(prefix, rule, **options):
    records, num_samples = (rule.first, rule.last), rule.num_samples
    return SeqDataset(prefix, rule.window_size, seed=rule.seed, num_samples=num_samples, records=records, **options)


def test_the_tokens_of_some_records_are_counted(tmp_path):
    """With and without compat; of all records those of the store."""
    prefix, lengths = pair(tmp_path), RECORDED["lengths"]
    for options in ({}, {"compat": "megatron", "seed": 1}):
        assert SeqDataset(prefix, 2, records=(1, 4), **options).num_tokens == sum(lengths[1:4])
        assert SeqDataset(prefix, 2, **options).num_tokens == sum(lengths)


@pytest.mark.parametrize("name", RULES)
def test_indices_are_those_recorded_of_megatron_core(tmp_path, name):
    """And come with the dataset, as it built them and as it finds them again."""
    wanted = RECORDED["indices"][name]
    built = build_indices(np.array(RECORDED["lengths"], np.int32), RULES[name])
    assert [array.dtype.name for array in built] == ["int32", "int32", "uint32"]
    assert [array.tolist() for array in built] == wanted
    for _ in range(2):
        dataset = ours(pair(tmp_path), RULES[name], compat="megatron")
        assert [array.tolist() for array in dataset.indices] == wanted
        assert len(dataset) == len(wanted[2])


@pytest.mark.parametrize("name", RULES)
def test_samples_are_those_of_megatron_core(tmp_path, name):
    """Its own, where it is installed: tokens, labels, positions, loss mask, and documents as its attention mask."""
    prefix = pair(tmp_path)
    expected, found = theirs(prefix, RULES[name]), ours(prefix, RULES[name], **OPTIONS, **MARKS)
    arrays = (expected.document_index, expected.sample_index, expected.shuffle_index)
    assert [(a.dtype, a.tolist()) for a in found.indices] == [(a.dtype, a.tolist()) for a in arrays]
    for number, sample in enumerate(found):
        wanted = expected[number]
        assert torch.equal(sample["input_ids"], wanted["tokens"])
        assert torch.equal(sample["target_ids"], wanted["labels"])
        assert torch.equal(sample["position_ids"], wanted["position_ids"])
        assert torch.equal(sample["loss_mask"], wanted["loss_mask"].bool())
        lengths = sample["cu_seqlens"].diff().tolist()
        seen = torch.block_diag(*(torch.ones(size, size) for size in lengths)).tril().bool()
        assert torch.equal(~seen, wanted["attention_mask"][0])


def test_a_sample_is_the_tokens_at_its_place(tmp_path):
    """Read one by one, many at once, and in another process."""
    dataset = ours(pair(tmp_path), RULES["epochs shuffled together"], **OPTIONS, **MARKS)
    documents, samples, shuffle = dataset.indices
    run = np.concatenate([dataset.store.fetch_record(int(number), "sequence") for number in documents])
    lengths = [len(dataset.store.fetch_record(int(number), "sequence")) for number in documents]
    for number, sample in enumerate(dataset):
        place, offset = samples[shuffle[number]]
        begin = sum(lengths[:place]) + offset
        assert sample["input_ids"].tolist() == run[begin : begin + 4].tolist()
        assert sample["target_ids"].tolist() == run[begin + 1 : begin + 5].tolist()
    assert plain(pickle.loads(pickle.dumps(dataset)).__getitems__([3, -1])) == plain([dataset[3], dataset[-1]])


def test_such_a_source_resumes_exactly(tmp_path):
    """Shuffled once more by the mixture, or in the order of Megatron."""
    prefix = pair(tmp_path)

    def mixture():
        source = named(ours(prefix, RULES["some documents"], compat="megatron"), name="tokens", percent=1)
        return MergedDataset([source], cyclic=False, shuffle_unstreaming_subsets=False)

    assert_exact_resume(mixture)
    assert [sample["__index__"] for sample in mixture()] == list(range(14))


def test_indices_are_built_once_and_kept_beside_the_pair(tmp_path, monkeypatch):
    """In a hidden folder, anew where the index was written anew."""
    prefix, rule = pair(tmp_path), RULES["one epoch"]
    ours(prefix, rule, compat="megatron")
    (folder,) = (tmp_path / ".name.samples").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["documents.npy", "samples.npy", "shuffle.npy"]
    with monkeypatch.context() as patch:
        patch.setattr("streamdata.stores.datasets.megatron_samples.build_indices", None)
        assert len(ours(prefix, rule, compat="megatron")) == len(RECORDED["indices"]["one epoch"][2])
    os.utime(tmp_path / "name.idx", ns=(1, 1))
    ours(prefix, rule, compat="megatron")
    assert len(list((tmp_path / ".name.samples").iterdir())) == 2


def test_where_they_cannot_be_kept_a_warning_says_so(tmp_path, monkeypatch, caplog):
    """The samples are the same."""

    def refuse(path):
        raise PermissionError(13, "read-only", str(path))

    kept = ours(pair(tmp_path / "a"), RULES["one epoch"], compat="megatron")
    monkeypatch.setattr("streamdata.stores.datasets.megatron_samples.make_directory", refuse)
    with caplog.at_level(logging.WARNING, "streamdata"):
        dataset = ours(pair(tmp_path / "b"), RULES["one epoch"], compat="megatron")
    assert "its sample indices cannot be kept" in caplog.text
    assert plain(list(dataset)) == plain(list(kept))
    assert [array.tolist() for array in dataset.indices] == [array.tolist() for array in kept.indices]


def test_damaged_indices_are_an_error_that_names_the_folder(tmp_path):
    """Cut short, or of other files."""
    prefix, rule = pair(tmp_path), RULES["one epoch"]
    ours(prefix, rule, compat="megatron")
    (folder,) = (tmp_path / ".name.samples").iterdir()
    data = (folder / "documents.npy").read_bytes()
    np.save(folder / "documents.npy", np.zeros(7, np.int32))
    with pytest.raises(StoreError, match=rf"indices '{folder}': expected samples of 5 tokens"):
        list(ours(prefix, rule, compat="megatron"))
    (folder / "documents.npy").write_bytes(data[:-1])
    with pytest.raises(StoreError, match=r"got 155 bytes of .*documents\.npy' for 7 values"):
        ours(prefix, rule, compat="megatron")


BAD = [
    ({"window_size": 4}, ValueError, "needs|expected train type 'seq', a seed"),
    ({"window_size": 4, "seed": 1, "stride": 2}, ValueError, "no other stride"),
    ({"window_size": 4, "seed": -1}, ValueError, r"expected a seed from 0 to 4294967295 .* got -1"),
    ({"window_size": 4, "seed": 2**32}, ValueError, "expected a seed from 0 to 4294967295"),
    (
        {"window_size": 4, "seed": 1, "num_samples": 0},
        ValueError,
        "num_samples is 0, expected a whole number of at least 1",
    ),
    ({"window_size": 4, "seed": 1, "documents": True}, ValueError, "needs eod_token to mark documents"),
    ({"window_size": 99, "seed": 1}, StoreError, "expected at least 100 tokens for one sample, got 22 in 7 documents"),
    ({"window_size": 4, "seed": 1, "compat": "gpt"}, ValueError, "expected compat='megatron' or None, got 'gpt'"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_what_does_not_go_together_is_an_error(tmp_path, options, error, message):
    """With what would."""
    with pytest.raises(error, match=message):
        DatasetFactory.load("seq", pair(tmp_path), **{"compat": "megatron", **options})


def test_other_stores_and_train_types_have_no_such_samples(tmp_path):
    """Nor options of theirs without the order."""
    with pytest.raises(StoreError, match=r"expected one pair of .bin and .idx, got 3 parts of format 'bin'"):
        SeqDataset(write("bin", tmp_path / "bin"), 4, compat="megatron", seed=1)
    with pytest.raises(ValueError, match="expected train type 'seq'"):
        SFTDataset(write("bin", tmp_path / "sft", "sft"), 4, compat="megatron", seed=1)
    with pytest.raises(ValueError, match="seed and num_samples go with compat='megatron'"):
        SeqDataset(pair(tmp_path), 4, seed=1)
    with pytest.raises(ValueError, match="lie in several places"):
        ours(pair(tmp_path), RULES["one epoch"], compat="megatron").get_index(0)


def test_a_negative_length_is_an_error_that_names_the_index(tmp_path):
    """Before anything is built of it."""
    prefix = pair(tmp_path)
    data = bytearray((tmp_path / "name.idx").read_bytes())
    data[34 + 4 : 34 + 8] = (-5).to_bytes(4, "little", signed=True)
    (tmp_path / "name.idx").write_bytes(data)
    with pytest.raises(StoreError, match=r"name\.idx': expected lengths of at least 0, got -5 for sequence 1"):
        ours(prefix, RULES["one epoch"], compat="megatron")
