"""What to do where states were written in another order."""

import re
from typing import Final

_CUT: Final = re.compile(r"blocks of (\d+)( to \d+ \w+)?, (.*)windows of \d+$")
"""What a description of shards, as `BlockSource` writes it, says of their blocks: records in one, the same of the other
shards where these differ, shuffling, blocks in a window."""

_SIZE: Final = re.compile(r"([\w-]+), (?:(\d+) records)?(?: in )?(?:(\d+) shards)?.*(, shuffle \w+)")
"""What a description of any source with records says first: the kind, the records, the shards."""


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
    former = "resume with the recipe, seed and data that wrote them"
    growth = _remedy_for_growth(written, present)
    return f"{growth}; otherwise {former}" if growth else former.capitalize()


def _remedy_for_growth(written: str, present: str) -> str | None:
    """What to do where a source may have what it had then, and more; None where it has not."""
    old, new = _SIZE.match(written), _SIZE.match(present)
    if not old or not new or old.group(1, 4) != new.group(1, 4):
        return None
    records, shards = (int(new[part] or 0) - int(old[part] or 0) for part in (2, 3))
    if shards > 0:
        return "If shards were added, name them as another source, and the former ones alone in this one"
    if old[3] and not shards and (records > 0 or not old[2]):
        return "If records were appended to a shard, restore it, write them as a new one, and name it as another source"
    if not old[3] and records > 0:
        return "If records were added, leave them out of this source, and make them another one"
    return None
