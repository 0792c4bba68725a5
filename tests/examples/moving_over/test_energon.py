"""Energon's folder: its tars by the names in its `split.yaml`."""

import shutil
from collections import Counter
from pathlib import Path

import webdataset
import yaml

from streamdata import MergedDataset, MetaDistributedWebDataset, instantiate_from_yaml
from streamdata.shards.listing import TAR_SUFFIXES
from streamdata.shards.urls import expand
from tests.streams import assert_exact_resume

RECIPE = Path(__file__).parents[3] / "examples/moving_over/energon.yaml"


def write(folder: Path) -> Path:
    """The folder as Energon leaves it: hidden metadata, tars and an index beside each."""
    shutil.copytree(Path(__file__).with_name("energon"), folder)
    for number, name in enumerate(["train/shard_0", "train/shard_1", "val/shard_0", "val/shard_1"]):
        (folder / name).parent.mkdir(exist_ok=True)
        with webdataset.TarWriter(str(folder / f"{name}.tar"), mtime=0) as writer:
            for key in range(3 * number, 3 * number + 3):
                writer.write({"__key__": f"{key:06}", "txt": f"text {key}", "json": {"n": key}})
        (folder / f"{name}.tar.idx").write_bytes(bytes(32))
    return folder


def test_the_recipe_reads_the_training_shards(tmp_path):
    """Each record once per epoch, and a resume goes on."""
    folder = write(tmp_path / "data")

    def make():
        return instantiate_from_yaml(str(RECIPE), {"data": str(folder)})

    whole = assert_exact_resume(make, steps=8, beyond=4)
    assert Counter(sample["txt"] for (sample,) in whole) == {f"text {n}".encode(): 2 for n in range(6)}


def test_the_parts_of_a_split_are_patterns_here(tmp_path):
    """As `split.yaml` has them; all of the folder is all splits."""
    folder = write(tmp_path / "data")
    parts = yaml.safe_load((folder / ".nv-meta/split.yaml").read_text())["split_parts"]
    assert [len(expand(f"{folder}/{part}", TAR_SUFFIXES)) for names in parts.values() for part in names] == [2, 2]
    whole = MetaDistributedWebDataset(str(folder), name="all", percent=1)
    assert len(list(MergedDataset([whole], cyclic=False))) == 12
