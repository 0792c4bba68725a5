"""What a job had come to before its present size: all that a later load needs of it, in one entry of the states."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import blake2b
from typing import Any

from streamdata.progress.lane_link import DealText
from streamdata.progress.leftovers import BlockCut, Leftovers, leftovers_of

DEAL = "deal/"
"""How the key of the entry begins; its number follows."""
HEADERS = ("generation/", DEAL)
"""How keys begin that are of no rank."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """What all lanes of earlier sizes together had come to in a pass: nothing, in a run that never changed."""

    time: float = 0.0
    """What was drawn of the top mixture, before its yield function: samples, or costs where it has a `cost`."""
    excess: Mapping[str, float] = field(default_factory=dict)
    """By the path of a source: how much more of it was drawn than its share."""
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By the path of a node: the sums of its `COUNTS`, which the lanes go on counting from."""
    left: Mapping[str, Leftovers] = field(default_factory=dict)
    """By the path of a source, present or not: what is left of it. One that is missing was not begun."""


@dataclass(frozen=True, kw_only=True)
class DealHeader:
    """What the generations of one size share: where the sizes before it ended. Empty in a run that never changed."""

    number: int = 0
    """The generation with which the size began."""
    step: int = 0
    """Batches that the furthest rank had delivered by then, since the run began."""
    first_pass: int = 0
    """The oldest pass that was not finished."""
    is_endless: bool = False
    """Whether nothing of the passes before that one is known."""
    finished: Sequence[int] = ()
    """The passes of which nothing was left."""
    passes: Mapping[int, Base] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    """What determined the order of each node that was ever there."""
    cuts: Mapping[str, BlockCut] = field(default_factory=dict)
    """How each source was divided."""
    totals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What was delivered of each node since the run began."""
    sizes: Sequence[Mapping[str, Any]] = ()
    """For people, a line for each earlier generation, the last ones."""
    origin: str = ""
    """A digest of where the lanes of the size before stood."""

    @cached_property
    def text(self) -> str:
        """The entry as JSON, the same for equal headers."""
        entry = _fields_of(self)
        entry["passes"] = {
            str(number): _fields_of(base) | {"left": {path: left.as_json() for path, left in base.left.items()}}
            for number, base in self.passes.items()
        }
        # As it is read: in JSON all keys are texts, also those of functions' states.
        return canonical(json.loads(json.dumps(entry)))

    @cached_property
    def digest(self) -> str:
        """Of its text."""
        return digest_of(self.text)

    @cached_property
    def entry(self) -> DealText | None:
        """As a lane's first batch has it; None in a run that never changed."""
        return DealText(f"{DEAL}{self.number}", self.text) if self.number else None


def canonical(value: Any) -> str:
    """JSON that is the same for equal values."""
    # By its digest ranks know that they go on from the same states, and files are named.
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(text: str) -> str:
    """Names a header."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def deal_header_of(value: Mapping[str, Any]) -> DealHeader:
    """Read an entry that has the digest of the one that was written."""
    passes = {}
    for number, base in value["passes"].items():
        left = {path: leftovers_of(leftovers) for path, leftovers in base["left"].items()}
        passes[int(number)] = Base(**base | {"left": left})
    cuts = {path: BlockCut(*cut) for path, cut in value["cuts"].items()}
    header = DealHeader(**dict(value) | {"passes": passes, "cuts": cuts})
    header.__dict__["text"] = canonical(value)  # as it was written: to write all columns anew takes long
    return header


def _fields_of(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}
