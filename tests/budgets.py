"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

CODE_LINES: Final = {"core": 18_712, "beside": 7_363, "above": 7_388}
"""Of the rooms of each floor (`tests/test_house.py`), by `python -m tests.count_code`. Some 420 more in the core since
weights are set while a run goes on (`mixing/live_weights.py`, `delivery/agree.py`, `StreamLoader.set_weights`), 74 in
all since stores keep the weights of documents. With steps of alike work and long context came 240 since rows and groups
are balanced (`Balance` in `text/plan.py`, `tools/plan/stragglers.py`), 370 since one process reads for a group
(`delivery/group_loader.py`), and 200 since batches can be sliced for context parallelism. 162 more in the core since
samples can be read again by their ids (`read_again` in `mixing/leaf.py`, `Source.fetch`). 618 beside it, and 10 more in
the core, since a ledger keeps the books of prompts (`ledger/`, of which a third is its server and client). 62 more in
the core since what is in the rows of a packer over all sources counts at once (`MergedFeed` in `mixing/mixture.py`), 16
beside it since a balanced packer refuses what would come again and a burst's provenance is gathered at once. 13 above
since `prepare` says how many sequences lost an end, one since counts may be written as 2e12. 19 in all since `check`
refuses keys that no dataset over a store would take and actions of roles, `show` counts padding on the left as such,
and messages say more. 13 in the core since `report` knows at which time of schedules a packer's samples were drawn,
also those of bursts that are drawn anew."""

FILES: Final = 243
"""Of the package: two more since weights are set while a run goes on, and the states after recent batches have one of
their own; two since rows and groups are balanced, one since one process reads for a group, one for slices,
seven since there is a ledger."""

FILES_OF_A_FOLDER: Final = 14
FILE_LINES: Final = 350
"""Code lines of a file."""

WALKS: Final = {"first_batch": (45, 332), "later_batch": (14, 45), "recipe": (32, 195), "another_size": (40, 424)}
"""Files and functions that each walk touches, by `python -m tests.walks`. A later batch says of which records it is:
two functions more. Weights that were set are asked for at a resume, and sources that are left out may be given some."""

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
