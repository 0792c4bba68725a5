import subprocess
import sys
import textwrap
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
from streamdata.recipe import check_recipe
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

SCRIPT = """
    from omegaconf import OmegaConf
    from streamdata import (
        BlendableDataset, DatasetFactory, ImageJsonlDataset, JsonlIterableDataset, MergedDataset,
        MetaDistributedWebDataset, PreferenceDataset, RLHFDataset, SFTChatDataset, SeqDataset, instantiate_from_yaml,
    )

    sources = [
        JsonlIterableDataset("x", name="web", percent=0.3),
        MetaDistributedWebDataset("x", name="tars", percent=0.3),
        ImageJsonlDataset("x", name="images", percent=1),
        SeqDataset("x", 4, name="seq", percent=1),
        DatasetFactory.load("seq", "x", 4, name="loaded", percent=1),
        BlendableDataset([[1]], [1], name="blend", percent=1),
        RLHFDataset("x", None, {}, name="prompts", percent=1),
        SFTChatDataset("x", None, name="chats", percent=1),
        PreferenceDataset("x", None, name="pairs", percent=1),
        MergedDataset([], name="inner", percent=1),
    ]
    lines = JsonlIterableDataset("x")
    lines.name, lines.percent = "lines", 2
    mixture: MergedDataset = instantiate_from_yaml("recipe.yaml")
    mixture = instantiate_from_yaml({"target": "streamdata.MergedDataset", "params": {"datasets": []}})
    mixture = instantiate_from_yaml(OmegaConf.create({"include": "recipe.yaml"}))
    mixture.set_epoch(1)
    mixture.name, mixture.percent = "outer", 0.5
    lines.name = 3
    JsonlIterableDataset("x", percent="much")
    instantiate_from_yaml(3)
"""


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


def test_type_checkers_know_names_weights_and_what_a_recipe_builds(tmp_path: Path) -> None:
    """A user's script under mypy --strict: only what is wrong is reported."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    config = Path(__file__).parents[2] / "pyproject.toml"
    # The cache and settings of the package's own check: with those mypy reads only the script anew.
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--strict", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # in here it would leave 2 GB behind
    assert not done.stderr
    first = len(script.read_text(encoding="utf-8").splitlines()) - 2
    errors = [line.split(": ", 1) for line in done.stdout.splitlines() if ": error: " in line]
    assert [int(where.rpartition(":")[2]) for where, _ in errors] == [first, first + 1, first + 2]
    assert [message.rpartition("[")[2] for _, message in errors] == ["assignment]", "arg-type]", "arg-type]"]


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
