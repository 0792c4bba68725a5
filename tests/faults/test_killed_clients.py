import json
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.killed_clients import Books, compare, read_books

RECORDS = [("a", 0, number) for number in range(4)]
TAKEN = dict(enumerate(RECORDS))


def test_what_a_client_asked_and_did_not_live_to_hear_of_is_unsure(tmp_path: Path) -> None:
    """Other settlements count once the ledger has said yes; retries settle nothing."""
    lines = [["took", 0, ["a", 0, 0]], ["asked", "done", [0, 1]], ["yes", "done", [0, 1]], ["asked", "drop", [2]]]
    lines += [["stale", "drop", [2]], ["asked", "retry", [5]], ["yes", "retry", [5]], ["asked", "done", [3]]]
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '["took", 4')
    assert read_books(tmp_path) == Books({0: ("a", 0, 0)}, Counter([0, 1]), {3}, 1)


def test_books_that_agree() -> None:
    """Two settled, one given again, and one that a killed client settled or not."""
    books = Books(TAKEN, Counter([0, 1]), {2, 3}, 0)
    assert "4 prompts, each once: 2 settled, 1 given again; 1 settled" in compare(books, RECORDS, RECORDS[2:3], 3)


@pytest.mark.parametrize(
    ("books", "again", "num_settled", "words"),
    [
        (Books(TAKEN, Counter([0, 1, 2]), set(), 0), [], 3, "lost"),
        (Books(TAKEN, Counter([0, 1, 2, 3, 3]), set(), 0), [], 4, "settled twice"),
        (Books(TAKEN, Counter([0, 1, 2, 3]), set(), 0), RECORDS[3:], 3, "settled, and given again"),
        (Books(TAKEN, Counter([0, 1, 2]), set(), 0), [*RECORDS[3:]] * 2, 3, "twice"),
        (Books({0: RECORDS[1]}, Counter([0, 1, 2, 3]), set(), 0), [], 4, "out of order"),
        (Books(TAKEN, Counter([0, 1, 2, 3]), set(), 0), [], 3, "the ledger settled 3"),
        (Books(TAKEN, Counter([0, 1, 2, 3]), set(), 0), [("a", 1, 0)], 3, "never took"),
    ],
)
def test_books_that_differ(books: Books, again: list, num_settled: int, words: str) -> None:
    """Each kind of difference is found."""
    with pytest.raises(AssertionError, match=words):
        compare(books, RECORDS, again, num_settled)
