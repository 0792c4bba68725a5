"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

CODE_LINES: Final = {"core": 18_100, "beside": 6_569, "above": 7_723}
"""Of the rooms of each floor (`tests/test_house.py`), by `python -m tests.count_code`. 33 more beside the core
since packed rows say which records their documents are, and how much they count; 39 more in it for losses of rows that
are kept apart or masked by their own tokens, for copies of an index that another process deletes, and for errors.
74 more since stores keep the weights of documents: 6 in the core, 35 beside it and 33 above; 2 more in the core since
rows that only fill a batch up do not count as losses of sources."""

FILES: Final = 241
"""Of the package."""

FILES_OF_A_FOLDER: Final = 14
FILE_LINES: Final = 350
"""Code lines of a file."""

WALKS: Final = {"first_batch": (52, 348), "later_batch": (14, 45), "recipe": (36, 201), "another_size": (41, 429)}
"""Files and functions that each walk touches, by `python -m tests.walks`. A later batch says of which
records it is: two functions more."""

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
