"""What to do where states were written in another order."""

import re
from typing import Final

_CUT: Final = re.compile(r"blocks of (\d+)( to \d+ \w+)?, (.*)windows of \d+$")
"""What a description of shards, as `BlockSource` writes it, says of their blocks: records in one, the same of the other
shards where these differ, shuffling, blocks in a window."""


def remedy_for_order(written: str, present: str) -> str:
    """Say how to go on from states whose order of a node was described as `written`, and is now `present`.

    Returns:
        A sentence, open at its end for "or start without states".
    """
    cut = _CUT.search(written)
    differs_in_cut_alone = _CUT.sub(r"\3", written) == _CUT.sub(r"\3", present)
    if cut and differs_in_cut_alone and written.startswith("parquet, "):
        return "Give the source the max_open_bytes and the shuffle_buffer that it had, in the version that wrote them"
    # A cut into blocks of several sizes has no number that would bring it back.
    if cut and not cut[2] and differs_in_cut_alone:
        return f"Give the source block_size={cut[1]}, as it was cut then, and the shuffle_buffer that it had"
    return "Resume with the recipe, seed and data that wrote them"
