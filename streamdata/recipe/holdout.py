"""What a source's `holdout` and `part` may be: how much of it is held out, and which of the two parts is read."""

from numbers import Real
from typing import Any, Final

from streamdata.errors import shown
from streamdata.recipe.parts import PartRange, read_parts

TRAIN, VALID = "train", "valid"
PARTS: Final = (TRAIN, VALID)
HOLDOUT_KEYS: Final = ("holdout", "parts", "parts_by", "part")


def read_selection(
    holdout: Any = None, parts: Any = None, parts_by: Any = None, part: Any = None
) -> tuple[float, str] | PartRange | None:
    """Read what a recipe says of the records that are read: what is held out, or shares; None where all are read.

    Raises:
        ValueError: They are not valid, or both are given; the message does not say whose.
    """
    if parts is None and parts_by is None:
        return read_holdout(holdout, part)
    if holdout is not None:
        raise ValueError(
            f"expected holdout or parts, got holdout={shown(holdout)} and parts={shown(parts)}\n"
            "  holdout is a share by a hash of each record, parts are exact ranges: choose one."
        )
    return read_parts(parts, part, parts_by)


def read_holdout(holdout: Any, part: Any) -> tuple[float, str] | None:
    """Read what a recipe says as `holdout` and `part`: the share of the records that is held out, and the part.

    Raises:
        ValueError: They are not valid; the message does not say whose.
    """
    if holdout is None:
        if part is not None:
            raise ValueError(
                f"expected a holdout where there is a part, got none, and {shown(part)} as part\n"
                "  Say how much is held out, such as holdout: 0.01; both parts of a source need the same one."
            )
        return None
    if isinstance(holdout, bool) or not isinstance(holdout, Real) or not 0 < float(holdout) < 1:
        raise ValueError(
            f"expected a number above 0 and below 1 as holdout, got {shown(holdout)}\n"
            "  It is the share of the records that is held out of training, such as 0.01."
        )
    if part is not None and part not in PARTS:
        raise ValueError(
            f"expected one of {', '.join(PARTS)} as part, got {shown(part)}\n"
            "  valid is what is held out, train (the default) is the rest."
        )
    return float(holdout), TRAIN if part is None else part
