from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from streamdata import BlendableDataset, instantiate_from_yaml
from streamdata.errors import StoreError
from streamdata.recipe.check import check_recipe
from tests.stores.tiny_stores import write_old_megatron
from tests.streams import assert_exact_resume

LENGTHS = {"a": [4, 0, 6, 1, 5, 3, 3, 9, 2, 7], "b": [5, 5, 5, 5, 5, 5, 5, 5]}
PARTS = "6,3,1"


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """Pairs a and b in the working directory, whose tokens tell their places."""
    monkeypatch.chdir(tmp_path)
    for pair, first in (("a", 0), ("b", 1000)):
        ends = np.cumsum([0, *LENGTHS[pair]])
        sequences = [list(range(first + begin, first + end)) for begin, end in pairwise(ends)]
        write_old_megatron(tmp_path / pair, sequences, 8, "uint16", list(range(len(sequences) + 1)))
    return tmp_path


def inputs(dataset):
    return [sample["input_ids"].tolist() for sample in dataset]


def test_a_command_line_is_a_blend(pairs):
    """Weights before prefixes, as text or a list, with or without suffixes."""
    blend = BlendableDataset.from_megatron("0.3 a 0.7 b.idx", 4, size=20)
    assert Counter(sample["dataset_idx"] for sample in blend) == {0: 6, 1: 14}
    assert inputs(blend) == inputs(BlendableDataset.from_megatron([3, "a", 7, "b"], 4, size=20))


def test_a_pair_alone_may_be_a_path(pairs):
    """As for DatasetFactory.load."""
    assert inputs(BlendableDataset.from_megatron(pairs / "a", 4)) == inputs(BlendableDataset.from_megatron("a", 4))


def test_a_part_smaller_than_a_window_is_named(pairs):
    """The part, its records and the pair: the store has enough tokens."""
    with pytest.raises(StoreError, match=r"got 7 tokens in records 9 to 10 of store '.*a'") as caught:
        BlendableDataset.from_megatron("a", 8, parts=PARTS, part="test")
    assert any("part 'test' of 6,3,1" in note for note in caught.value.__notes__)


def test_prefixes_without_weights_count_by_their_samples(pairs):
    """Each sample once."""
    blend = BlendableDataset.from_megatron("a b", 4)
    assert [len(dataset) for dataset in blend.datasets] == [9, 9]
    assert sorted(inputs(blend)) == sorted(ids for dataset in blend.datasets for ids in inputs(dataset))


def test_parts_are_ranges_of_sequences(pairs):
    """Disjoint, and together all: a of 10 sequences is cut after 6 and 9 of them, at tokens 19 and 33."""
    spans = {}
    for part in ("train", "valid", "test"):
        (dataset,) = BlendableDataset.from_megatron("a", 2, parts=PARTS, part=part).datasets
        ids = [sample["input_ids"].tolist() + sample["target_ids"].tolist()[-1:] for sample in dataset]
        spans[part] = (ids[0][0], ids[-1][-1])
    assert spans == {"train": (0, 18), "valid": (19, 31), "test": (33, 39)}


@pytest.mark.parametrize("size", [4, 30])
def test_nearly_equal_weights_are_equal_with_compat(pairs, size):
    """In the number of samples of each pair, too."""
    options = {"window_size": 4, "size": size, "seed": 3, "compat": "megatron"}
    nearly, equal = (BlendableDataset.from_megatron(paths, **options) for paths in ("0.500001 a 0.499999 b", "1 a 1 b"))
    assert inputs(nearly) == inputs(equal)
    assert list(nearly.dataset_index) == [0, 1] * (size // 2)


def test_numbers_of_samples_are_not_rounded_with_compat(tmp_path):
    """They are no weights that somebody gave: of pairs of nearly equal lengths each sample still comes once."""
    for pair, num_tokens in (("a", 100_001), ("b", 100_002)):
        write_old_megatron(tmp_path / pair, [range(1, 1 + num_tokens)], 4, "int32", [0, 1])
    blend = BlendableDataset.from_megatron([tmp_path / "a", tmp_path / "b"], 1, seed=1, compat="megatron")
    assert np.bincount(blend.dataset_index).tolist() == [100_000, 100_001]


ERRORS = [
    ({"paths": "a 0.7 b"}, "expected a weight before each prefix, or none at all"),
    ({"paths": "0.3 a b"}, "If '0.3' is a prefix, write './0.3'"),
    ({"paths": ""}, "expected weights and prefixes"),
    ({"paths": None}, "expected weights and prefixes"),
    ({"paths": "0.3 'a 0.7 b"}, "from_megatron: expected weights and prefixes.* No closing quotation"),
    ({"paths": "0 a 1 b", "compat": "megatron", "seed": 1, "size": 9}, "weight 0: expected a positive, finite number"),
    ({"paths": "1 a nan b", "compat": "megatron", "seed": 1, "size": 9}, "weight 1: expected a positive, finite"),
    ({"part": "valid"}, "expected parts, such as '969,30,1', for part 'valid', got None"),
    ({"parts": "1,2,x"}, "expected up to three shares as parts, got '1,2,x'"),
    ({"parts": "969,30,1", "part": "test"}, r"'a': expected sequences for part 'test' of 969,30,1, got none of 10"),
    ({"parts": "1", "part": "dev"}, "expected one of train, valid, test as part, got 'dev'"),
    ({"paths": "1 a", "compat": "megatron", "seed": 1}, "with weights needs size"),
]


@pytest.mark.parametrize(("options", "message"), ERRORS)
def test_what_is_no_command_line_is_an_error(pairs, options, message):
    """That says what is; an empty part names its pair."""
    with pytest.raises(ValueError, match=message):
        BlendableDataset.from_megatron(**{"paths": "a", "window_size": 2, **options})


def test_a_pair_that_is_not_there_is_named(pairs):
    """By its prefix."""
    with pytest.raises(
        FileNotFoundError, match=r"'c': expected a directory of shards, a file, or a \.bin and an \.idx"
    ):
        BlendableDataset.from_megatron("0.3 a 0.7 c", 2)
    with pytest.raises(StoreError, match="at least 51 tokens"):
        BlendableDataset.from_megatron("a", 50)


RECIPE = """
target: streamdata.MergedDataset
params:
  datasets:
    - target: streamdata.BlendableDataset.from_megatron
      params: {paths: 0.3 a 0.7 b, window_size: 4, parts: 6,3,1, part: valid, size: 30, seed: 5}
      name: tokens
      percent: 1
"""


def test_a_blend_in_a_recipe_resumes_exactly(pairs):
    """And its params are checked."""
    (pairs / "recipe.yaml").write_text(RECIPE.replace("parts: 6,3,1", 'parts: "6,3,1"'))
    assert check_recipe(pairs / "recipe.yaml") == []
    assert_exact_resume(lambda: instantiate_from_yaml(pairs / "recipe.yaml"))


def theirs(blend, size, seed):
    """The train part that Megatron-Core's builder makes of a blend; datasets and their samples."""
    builder = pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")
    gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
    tokenizer = type("Tokenizer", (), {"vocab_size": 5, "eod": 1, "pad": -1, "unique_identifiers": {}})()
    resets = {"reset_position_ids": False, "reset_attention_mask": False, "eod_mask_loss": False}
    config = gpt.GPTDatasetConfig(
        random_seed=seed, sequence_length=3, blend=blend, split=PARTS, tokenizer=tokenizer, **resets
    )
    sizes = [size, size, None if blend[1] is None else size]
    return builder.BlendedMegatronDatasetBuilder(gpt.GPTDataset, sizes, lambda: True, config).build()


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize(
    ("paths", "blend", "size"),
    [
        ("0.3 a 0.7 b", (["a", "b"], [0.3, 0.7]), 40),
        ("1 a 1 b", (["a", "b"], [1.0, 1.0]), 9),
        ("a b", (["a", "b"], None), None),
        ("a b", (["a", "b"], None), 7),
        ("a", (["a"], None), 25),
        ("1 a", (["a"], [1.0]), 25),
    ],
)
def test_a_compatible_blend_is_the_one_of_megatron_core(pairs, paths, blend, size, part):
    """Its own, where it is installed: number of samples, datasets, tokens."""
    expected = theirs(blend, size, 77)[part]
    options = {"parts": PARTS, "part": ("train", "valid")[part], "size": size, "seed": 77, "compat": "megatron"}
    found = BlendableDataset.from_megatron(paths, 3, **options)
    assert len(found) == len(expected)
    for sample, wanted in zip(found, (expected[number] for number in range(len(expected))), strict=True):
        assert torch.equal(sample["input_ids"], wanted["tokens"])
        assert torch.equal(sample["target_ids"], wanted["labels"])
        assert sample["dataset_idx"] == wanted.get("dataset_id", 0)
