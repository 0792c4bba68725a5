"""verl's section `data` in a recipe, and a class for its trainer."""

import runpy
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from streamdata import RLHFDataset, instantiate_from_yaml
from tests.chats.prompts.prompt_files import sums
from tests.chats.prompts.verl_sections import VERL_SECTIONS
from tests.sources import tiny_processors

FOLDER = Path("examples/moving_over")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))


def test_the_recipe_has_verls_whole_section_and_its_rows(tmp_path):
    """All keys of 0.9.1; the six rows that verl chooses, in another order in each epoch."""
    config = OmegaConf.to_container(OmegaConf.load(FOLDER / "verl.yaml"))["params"]["datasets"][0]["params"]["config"]
    assert set(config) == {*VERL_SECTIONS["0.9.1"], "cache_dir"}
    sums(tmp_path / "prompts.parquet", 20)
    tiny_processors.tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    stream = iter(instantiate_from_yaml(str(FOLDER / "verl.yaml"), {"data": str(tmp_path)}))
    chosen = np.random.default_rng(7).choice(20, 6, replace=False)
    assert sorted(item["index"] - 100 for item in islice(stream, 6)) == sorted(chosen.tolist())


@pytest.mark.parametrize("version", VERL_SECTIONS)
def test_its_trainer_loads_the_class(tmp_path, version):
    """By `custom_cls`, and passes its whole section, the processor and `max_samples`."""
    prompts = runpy.run_path(str(FOLDER / "verl.py"))["Prompts"]
    custom = {"path": str(FOLDER / "verl.py"), "name": "Prompts"}
    section = OmegaConf.create({**VERL_SECTIONS[version], "custom_cls": custom, "return_full_prompt": True, "seed": 7})
    path = sums(tmp_path / "a.parquet", 20)
    dataset = prompts(path, tiny_processors.tiny_tokenizer(), section, None, 8)
    assert [item["index"] - 100 for item in dataset.__getitems__([0, 1, 2])] == [13, 15, 4]
    assert dataset[0]["full_prompts"].startswith("<|im_start|>system\nReason step by step.")
    assert dataset[0]["dummy_tensor"].tolist() == [0]


def test_rows_are_those_of_verl_where_it_is_installed(tmp_path):
    """Its own class over the same file."""
    pytest.importorskip("datasets")
    verls = pytest.importorskip("verl.utils.dataset.rl_dataset").RLHFDataset
    path, tokenizer = sums(tmp_path / "a.parquet", 20), tiny_processors.tiny_tokenizer()
    config = OmegaConf.create({"shuffle": True, "seed": 3, "filter_overlong_prompts": False})
    theirs, ours = (kind(path, tokenizer, config, None, 9) for kind in (verls, RLHFDataset))
    assert [row["extra_info"]["index"] for row in theirs.dataframe] == [ours[number]["index"] for number in range(9)]
