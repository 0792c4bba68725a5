"""What a job had come to before its present size: all that a later load needs of it, in one entry of the states."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from streamdata.progress.checked import check_cut, check_keys, check_lines, check_numbers, check_texts, count
from streamdata.progress.lane_link import DealText
from streamdata.progress.leftovers import BlockCut, Leftovers, leftovers_of

DEAL = "deal/"
"""How the key of the entry begins; its number follows."""


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

    def as_json(self) -> dict[str, Any]:
        """What a header holds; what is empty is left out."""
        left = {path: leftovers.as_json() for path, leftovers in self.left.items()}
        fields = {"time": self.time, "excess": dict(self.excess), "counts": dict(self.counts), "left": left}
        return {name: value for name, value in fields.items() if value or name == "time"}


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

    def as_json(self) -> dict[str, Any]:
        """The entry."""
        return {
            "number": self.number,
            "step": self.step,
            "pass": self.first_pass,
            "endless": self.is_endless,
            "finished": list(self.finished),
            "passes": {str(number): base.as_json() for number, base in self.passes.items()},
            "nodes": self.nodes,
            "cuts": self.cuts,
            "totals": self.totals,
            "sizes": self.sizes,
            "origin": self.origin,
        }

    @cached_property
    def text(self) -> str:
        """It as JSON, the same for equal headers."""
        # As it is read: in JSON all keys are texts, also those of functions' states.
        return canonical(json.loads(json.dumps(self.as_json())))

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
    """Read what is written of a deal.

    Raises:
        ValueError: It is something else.
    """
    names = {"number", "step", "pass", "endless", "finished", "passes", "nodes", "cuts", "totals", "sizes", "origin"}
    check_keys(value, names)
    check_texts(value["nodes"])
    check_lines(value["sizes"])
    for sums in value["totals"].values():
        check_numbers(sums.values())
    for cut in value["cuts"].values():
        check_cut(cut)
    if type(value["endless"]) is not bool or not isinstance(value["origin"], str):
        raise ValueError("expected whether the stream is endless, and a digest")
    passes = {count(int(number)): _base_of(base) for number, base in value["passes"].items()}
    header = DealHeader(
        number=count(value["number"]),
        step=count(value["step"]),
        first_pass=count(value["pass"]),
        is_endless=value["endless"],
        finished=[count(number) for number in value["finished"]],
        passes=passes,
        nodes=value["nodes"],
        cuts={path: BlockCut(*cut) for path, cut in value["cuts"].items()},
        totals=value["totals"],
        sizes=value["sizes"],
        origin=value["origin"],
    )
    header.__dict__["text"] = canonical(value)  # as it was written: to write all columns anew takes long
    return header


def _base_of(value: Mapping[str, Any]) -> Base:
    if not value.keys() <= Base.__dataclass_fields__.keys():
        raise ValueError("expected other fields of a pass")
    check_numbers((value["time"], *value.get("excess", {}).values()))
    for counts in value.get("counts", {}).values():
        _, _, _, _ = map(count, counts)
    left = {path: leftovers_of(leftovers) for path, leftovers in value.get("left", {}).items()}
    return Base(time=value["time"], excess=value.get("excess", {}), counts=value.get("counts", {}), left=left)
