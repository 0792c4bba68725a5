"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

CODE_LINES: Final = {"core": 19_720, "beside": 6_550, "above": 8_120}
"""Of the rooms of each floor (`tests/test_house.py`), by `python -m tests.count_code`. Above, 110 lines more
than before are `streamdata.metrics`, for Prometheus, and 380 what writes recipes (`tools/init/`)."""

FILES: Final = 247
"""Of the package. Seven more than before: `run/stalls.py` (`stall_s`), `tools/trace/metrics.py` (Prometheus), and five
that write recipes."""

FILES_OF_A_FOLDER: Final = 14
FILE_LINES: Final = 350
"""Code lines of a file."""

WALKS: Final = {"first_batch": (55, 350), "later_batch": (13, 44), "recipe": (38, 203), "another_size": (42, 439)}
"""Files and functions that each walk touches, by `python -m tests.walks`. One function more than before in the first
batch: few numbers of a permutation are computed without arrays, in a tenth of the time."""

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
