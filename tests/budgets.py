"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

CODE_LINES: Final = {"core": 21_300, "beside": 7_200, "above": 9_500}
"""Of the rooms of each floor (`tests/test_house.py`), by `python -m tests.count_code`."""

FILES: Final = 394
"""Of the package."""

FILES_OF_A_FOLDER: Final = 30
FILE_LINES: Final = 367
"""Code lines of a file."""

WALKS: Final = {"first_batch": (81, 549), "later_batch": (19, 66), "recipe": (57, 297), "another_size": (57, 546)}
"""Files and functions that each walk touches, by `python -m tests.walks`."""

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
