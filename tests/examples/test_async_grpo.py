import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples import async_grpo, async_grpo_killed
from tests.ranks import CONTEXT, fork_workers

EPOCHS = 2


class Fork:
    """A training as a fork of a process that has imported torch; so are its workers."""

    def __init__(self, run: Path, workers: int, epochs: int) -> None:
        self.process = CONTEXT.Process(target=train, args=(run, workers, epochs))
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode


def train(run: Path, workers: int, epochs: int) -> None:
    os.setsid()
    fork_workers()
    async_grpo.START_METHOD, async_grpo.SAVE_EVERY, async_grpo.GROUPS_OF_A_STEP = "fork", 2, 2
    async_grpo.SHORTEST_S, async_grpo.TOO_LONG_S = 0.0001, 0.0045
    sys.argv = ["", str(run), f"--workers={workers}", f"--epochs={epochs}"]
    async_grpo.main()


def test_a_killed_training_settles_each_prompt_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed with its workers while prompts are being answered; resumed with more workers, then with fewer."""
    monkeypatch.setattr(async_grpo_killed, "start", Fork)
    monkeypatch.setattr(async_grpo_killed, "WORKERS", [2, 3, 1])
    async_grpo_killed.main(str(tmp_path), EPOCHS, seed=1)
    assert "200 prompts, each once: " in capsys.readouterr().out
    resumed = [json.loads(path.read_text().partition("\n")[0])["resumed"] for path in sorted(tmp_path.glob("log-*"))]
    assert len(resumed) == 3
    assert resumed[-1] > 0


@pytest.mark.long
def test_five_kills_of_a_whole_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As its page says, each start a command of its own."""
    async_grpo_killed.main(str(tmp_path))
    assert "2,000 prompts, each once: " in capsys.readouterr().out


def write_logs(run: Path, *starts: tuple[int, dict[tuple[int, int], int]]) -> None:
    """Starts: the step that each went on from, and at which step it settled which prompt."""
    for number, (resumed, steps) in enumerate(starts):
        lines = [{"step": step, "epoch": epoch, "row": row, "end": "done"} for (epoch, row), step in steps.items()]
        text = "".join(json.dumps(line) + "\n" for line in ({"resumed": resumed}, *lines))
        (run / f"log-{number:02}.jsonl").write_text(text)


def test_what_was_settled_after_the_checkpoint_does_not_count(tmp_path: Path) -> None:
    """Nor does half a line."""
    write_logs(tmp_path, (0, {(0, 1): 8, (0, 2): 9, (0, 3): 10}), (10, {(0, 3): 11}))
    with (tmp_path / "log-00.jsonl").open("a") as file:
        file.write('{"step": 1')
    books = async_grpo_killed.books_of(tmp_path)
    assert books == (Counter(done=3), Counter([(0, 1), (0, 2), (0, 3)]), 1)


@pytest.mark.parametrize(("change", "words"), [(-1, r"lost: \[\(0, 7\)\]"), (1, r"repeated: \[\(0, 7\)\]")])
def test_a_prompt_that_is_lost_or_repeated_is_found(change: int, words: str) -> None:
    """By epoch and row."""
    prompts = Counter({(0, row): 1 for row in range(async_grpo_killed.NUM_PROMPTS)})
    books = async_grpo_killed.Books(Counter(), prompts, 0)
    assert "100 prompts, each once" in async_grpo_killed.compare(books, epochs=1)
    prompts[0, 7] += change
    with pytest.raises(AssertionError, match=words):
        async_grpo_killed.compare(books, epochs=1)


def test_all_copies_of_a_group_are_rewarded_alike_for_the_same_answer() -> None:
    """1 for the last digit of the sum."""
    group = async_grpo.Group((0, 1), async_grpo.PROMPTS[58], 0, [3, 8, 3], [0.0] * 3)
    assert group.rewards == [1, 0, 1]
