"""What a recipe may name of streamdata itself, and which attributes it may set on what that builds.

A name that is not listed is refused: a writer, a helper or a private class would let a recipe do more than read.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from streamdata.errors import did_you_mean, shown

OWN: Final = "streamdata"
_SOURCE: Final = (
    "name", "percent", "holdout", "length", "length_divisor", "length_multiplier", "max_bad", "max_epochs", "part",
    "process_fn", "single_process_fn",
)  # fmt: skip
_PARTS: Final = ("parts", "parts_by")
_MAP_STYLE: Final = (*_SOURCE, *_PARTS, "records_per_block")

TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    # mixtures
    "streamdata.MergedDataset": ("name", "percent", "max_bad"),
    "streamdata.BlendableDataset": _MAP_STYLE,
    "streamdata.BlendableDataset.from_megatron": _MAP_STYLE,
    "streamdata.make_blendable_dataset": (),
    # sources
    "streamdata.CsvDataset": _SOURCE,
    "streamdata.DPODataset": _MAP_STYLE,
    "streamdata.DatasetFactory.load": _MAP_STYLE,
    "streamdata.GRPODataset": _MAP_STYLE,
    "streamdata.ImageFolderDataset": _MAP_STYLE,
    "streamdata.ImageJsonlDataset": _MAP_STYLE,
    "streamdata.JsonlIterableDataset": _SOURCE,
    "streamdata.MetaDistributedWebDataset": _SOURCE,
    "streamdata.ParquetDataset": _SOURCE,
    "streamdata.PreferenceDataset": _MAP_STYLE,
    "streamdata.RLHFDataset": (*_SOURCE, *_PARTS),  # it says itself how many of its items belong together
    "streamdata.SFTChatDataset": _MAP_STYLE,
    "streamdata.SFTDataset": _MAP_STYLE,
    "streamdata.SeqDataset": _MAP_STYLE,
    # stores, to read
    "streamdata.H5Store": (),
    "streamdata.MegatronStore": (),
    "streamdata.MmapStore": (),
    "streamdata.StoreFactory.create": (),
    # process functions, and builders of them
    "streamdata.DecodeImages": (),
    "streamdata.GroupByLength": (),
    "streamdata.ImageJsonlProcessFnBuilder": (),
    "streamdata.ImageTextPairProcessFnBuilder": (),
    "streamdata.PackTokens": (),
    "streamdata.TextJsonlProcessFnBuilder": (),
    # what a DataLoader is given beside the dataset
    "streamdata.Pad": (),
    "streamdata.GroupCollate": (),
    "streamdata.ResumableDistributedSampler": (),
    "streamdata.TensorCollate": (),
    "streamdata.collate_fn": (),  # the former name of the collate of prompts
    "streamdata.dpo_collate": (),
    "streamdata.grpo_collate": (),
    "streamdata.mixed_collate": (),
    "streamdata.prompt_collate": (),
}
"""The targets, and the attributes that a recipe may set on what each builds."""


def is_own(name: str) -> bool:
    """Whether a dotted name lies in streamdata."""
    return name.partition(".")[0] == OWN


def public_name(origin: str) -> str | None:
    """Returns the target that a name in streamdata leads to, also from where it is defined; None for other names."""
    if not is_own(origin):
        return None
    return next((name for name in TARGETS if origin.endswith(name.removeprefix(OWN))), None)


def builds_source(origin: str) -> bool:
    """Whether what a name in streamdata builds can be a source of a mixture; a mixture is one, too."""
    public = public_name(origin)
    return public is not None and "percent" in TARGETS[public]


def refusal_of_own(name: str) -> str | None:
    """Returns why a name in streamdata is refused as a target's, or None."""
    if name in TARGETS:
        return None
    public = public_name(name)
    if public is not None:
        return f"{shown(name)} is refused: a recipe names what is public\n  Write {shown(public)}."
    tails = [target.removeprefix(f"{OWN}.") for target in TARGETS]
    guess = did_you_mean(name.removeprefix(f"{OWN}."), tails)
    return (
        f"{shown(name)} is refused: expected one of streamdata's targets{guess}\n"
        f"  These are, after 'streamdata.': {', '.join(sorted(tails))}."
    )


def refusal_of_attribute(name: str, origin: str, parameters: Collection[str], given: Collection[Any]) -> str | None:
    """Returns why an attribute may not be set on what streamdata built, or None; what others built takes any.

    Args:
        name: The attribute, as the recipe calls it.
        origin: The dotted name of the target, or of the object's class.
        parameters: The names of what it can be called with.
        given: The names of what the recipe calls it with.
    """
    if not is_own(origin):
        return None
    if name in given:  # one of the two would be passed over
        return f"expected {shown(name)} once, got it here and below 'params'\n  Remove one of them."
    public = public_name(origin)
    known = TARGETS[public] if public else ()
    if name in known:
        return None
    if name in parameters:
        return f"expected {shown(name)} as a parameter, got it as an attribute\n  Write it below 'params'."
    guess = did_you_mean(name, [*known, *parameters])
    return f"unknown attribute {shown(name)}{guess}\n  It takes: {', '.join(known) or 'none'}; all else is in 'params'."
