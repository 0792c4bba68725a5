"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

CODE_LINES: Final = {"core": 20_510, "beside": 6_760, "above": 9_140}
"""Of the rooms of each floor (`tests/test_house.py`), by `python -m tests.count_code`. Above, 110 lines more
than before are `streamdata.metrics`, for Prometheus, and 380 what writes recipes (`tools/init/`)."""

FILES: Final = 255
"""Of the package. Seven more than before: `run/stalls.py` (`stall_s`), `tools/trace/metrics.py` (Prometheus), and five
that write recipes."""

FILES_OF_A_FOLDER: Final = 14
FILE_LINES: Final = 350
"""Code lines of a file."""

WALKS: Final = {"first_batch": (55, 399), "later_batch": (13, 51), "recipe": (38, 242), "another_size": (42, 461)}
"""Files and functions that each walk touches, by `python -m tests.walks`."""

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
