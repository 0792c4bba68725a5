"""What each train type reads from a store: one table, for datasets, for the writer and for `streamdata prepare`."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple


class SourceKeys(NamedTuple):
    """What one source of a train type is in a store.

    Attributes:
        tokens: The key of its tokens, or of its numbers.
        mask: The key that says which of them are trained; None where all of them are, or none.
        positions: The key of their position ids, which the train type reads where a store has them.
    """

    tokens: str
    mask: str | None = None
    positions: str | None = None


SOURCES: Final[Mapping[str, Mapping[str, SourceKeys]]] = {
    "seq": {"sequence": SourceKeys("sequence")},
    "sft": {"sequence": SourceKeys("sequence", "loss_mask", "position_ids")},
    "dpo": {"chosen": SourceKeys("chosen", "chosen_mask"), "rejected": SourceKeys("rejected", "rejected_mask")},
    "grpo": {
        "prompts": SourceKeys("prompts"),
        "responses": SourceKeys("responses", "masks"),
        "rewards": SourceKeys("rewards"),
    },
}
"""The sources of each train type. What datasets read and what `streamdata prepare` writes follows from it."""

TRAIN_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    name: (
        *(keys.tokens for keys in sources.values()),
        *(keys.mask for keys in sources.values() if keys.mask is not None),
    )
    for name, sources in SOURCES.items()
}
"""The keys that each train type needs: of tokens, then masks."""


def possible_train_types(keys: Sequence[str]) -> list[str]:
    """The train types whose keys are all there."""
    return [name for name, needed in TRAIN_TYPES.items() if set(needed) <= set(keys)]
