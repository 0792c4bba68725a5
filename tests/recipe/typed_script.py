"""A user's script, which mypy checks with the package and nobody runs: only what is wrong is an error there."""

from omegaconf import OmegaConf

from streamdata import (
    BlendableDataset,
    DatasetFactory,
    ImageJsonlDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    PreferenceDataset,
    RLHFDataset,
    SeqDataset,
    SFTChatDataset,
    instantiate_from_yaml,
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
lines.name = 3  # type: ignore[assignment]
JsonlIterableDataset("x", percent="much")  # type: ignore[arg-type]
instantiate_from_yaml(3)  # type: ignore[arg-type]
