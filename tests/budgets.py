"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

CODE_LINES: Final = {"core": 20_510, "beside": 6_760, "above": 9_030}
"""Of the rooms of each floor (`tests/test_house.py`), by `python -m tests.count_code`.

Above, 380 are what writes recipes (`tools/init/`)."""

FILES: Final = 253
"""Of the package; 5 of them write recipes."""

FILES_OF_A_FOLDER: Final = 14
FILE_LINES: Final = 350
"""Code lines of a file."""

WALKS: Final = {"first_batch": (55, 399), "later_batch": (13, 51), "recipe": (38, 242), "another_size": (42, 461)}
"""Files and functions that each walk touches, by `python -m tests.walks`."""

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
