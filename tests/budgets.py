"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

CODE_LINES: Final = {"core": 18_601, "beside": 6_501, "above": 7_914}
"""Of the rooms of each floor (`tests/test_house.py`), by `python -m tests.count_code`."""

FILES: Final = 243
"""Of the package."""

FILES_OF_A_FOLDER: Final = 14
FILE_LINES: Final = 350
"""Code lines of a file."""

WALKS: Final = {"first_batch": (54, 347), "later_batch": (13, 43), "recipe": (38, 203), "another_size": (41, 428)}
"""Files and functions that each walk touches, by `python -m tests.walks`."""

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
