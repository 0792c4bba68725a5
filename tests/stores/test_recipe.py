from itertools import islice

from streamdata import instantiate_from_yaml
from tests.stores.tiny_stores import write
from tests.streams import loaded

RECIPE = """
target: streamdata.MergedDataset
params:
  datasets:
    - target: {factory}.load
      params: {{train_type: seq, load_path: {directory}/bin, window_size: 6, documents: true}}
      name: tokens
      percent: 2
    - target: streamdata.SFTDataset
      params: {{load_path: {directory}/h5, window_size: 5, stride: 2}}
      name: chats
      percent: 1
"""


def test_stores_are_sources_of_a_recipe(tmp_path):
    """By the factory, or directly."""
    write("bin", tmp_path / "bin")
    write("h5", tmp_path / "h5", "sft")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(directory=tmp_path, factory="streamdata.DatasetFactory"))
    dataset = instantiate_from_yaml(tmp_path / "recipe.yaml")
    samples = [batch[0] for batch in islice(loaded(dataset, 0), 30)]
    assert sum(sample["__datasetname__"] == "tokens" for sample in samples) == 20
    assert all(("cu_seqlens" in sample) == (sample["__datasetname__"] == "tokens") for sample in samples)
