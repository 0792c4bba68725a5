from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdata import (
    BlendableDataset,
    CsvDataset,
    DatasetFactory,
    DPODataset,
    ImageFolderDataset,
    ImageJsonlDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ParquetDataset,
    RecipeError,
    SeqDataset,
    instantiate_from_yaml,
)
from streamdata.recipe.check import check_recipe
from tests.shard_files import jpeg, write_jsonl, write_tars
from tests.stores.tiny_stores import write


def write_csv(folder):
    """One row."""
    folder.mkdir(parents=True)
    (folder / "0.csv").write_text("a\n1\n")
    return str(folder)


def write_classes(folder):
    """One image."""
    (folder / "cat").mkdir(parents=True)
    (folder / "cat/0.jpg").write_bytes(jpeg(0))
    return str(folder)


def write_parquet(folder):
    """One row."""
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), folder / "0.parquet")
    return str(folder)


BUILDERS = {
    "jsonl": lambda folder, **named: JsonlIterableDataset(write_jsonl(folder / "jsonl", [2]), **named),
    "tar": lambda folder, **named: MetaDistributedWebDataset(write_tars(folder / "tar", [2]), **named),
    "csv": lambda folder, **named: CsvDataset(write_csv(folder / "csv"), **named),
    "classes": lambda folder, **named: ImageFolderDataset(write_classes(folder / "classes"), **named),
    "parquet": lambda folder, **named: ParquetDataset(write_parquet(folder / "parquet"), **named),
    "images": lambda folder, **named: ImageJsonlDataset(f"{write_jsonl(folder / 'images', [2])}/00000.jsonl", **named),
    "seq": lambda folder, **named: SeqDataset(write("bin", folder / "seq"), 4, **named),
    "dpo": lambda folder, **named: DPODataset(write("bin", folder / "dpo", "dpo"), **named),
    "loaded": lambda folder, **named: DatasetFactory.load("sft", write("bin", folder / "sft", "sft"), 4, **named),
    "blend": lambda _, **named: BlendableDataset([[1, 2]], [1], **named),
    "mixture": lambda _, **named: MergedDataset([BlendableDataset([[1, 2]], [1], name="b", percent=1)], **named),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_source_takes_its_name_and_weight(kind: str, tmp_path: Path) -> None:
    """As arguments, and both may be changed; without them it has none, which a mixture says."""
    source = BUILDERS[kind](tmp_path, name="web", percent=0.3)
    assert (source.name, source.percent) == ("web", 0.3)
    source.name = "other"
    assert MergedDataset([source]).datasets[0].name == "other"
    with pytest.raises(ValueError, match=r"expected a unique name without '.', got None\n  Set its attribute `name`"):
        MergedDataset([BUILDERS[kind](tmp_path / "again")])


def test_recipes_name_by_parameter_or_attribute(tmp_path: Path) -> None:
    """One in params, the other beside the target, as they come."""
    params = {"path": write_jsonl(tmp_path, [2]), "percent": 2}
    source = instantiate_from_yaml({"target": "streamdata.JsonlIterableDataset", "params": params, "name": "web"})
    assert (source.name, source.percent) == ("web", 2)


def test_a_name_that_is_given_twice_is_an_error(tmp_path: Path) -> None:
    """One of the two would be passed over in silence."""
    recipe = tmp_path / "recipe.yaml"
    path = write_jsonl(tmp_path / "jsonl", [2])
    recipe.write_text(f"""
target: streamdata.MergedDataset
params:
  datasets:
    - target: streamdata.JsonlIterableDataset
      params: {{path: "{path}", name: one, percent: 1}}
      name: other
""")
    with pytest.raises(RecipeError, match=r"recipe.yaml:7:7: .*expected 'name' once, got it here and below 'params'"):
        instantiate_from_yaml(recipe)
    (problem,) = check_recipe(recipe)
    assert "expected 'name' once" in str(problem)
