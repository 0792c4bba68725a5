"""`streamdata state`: what states hold, in words, wherever they were saved."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import Result

from streamdata import MergedDataset, PromptLedger, load_states, merge_states, to_state
from tests.states.test_saving import Rank
from tests.streams import Numbers, through_json

Streamdata = Callable[..., Result]


def odd(record):
    """Drops every other record."""
    return record if record["value"] % 2 else None


def mixture(weight=3):
    """Of two sources, one of which drops records."""
    return MergedDataset([Numbers("a", 400, weight), Numbers("b", 400, single_process_fn=odd)], seed=1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two steps of two ranks, then one of three ranks with another weight, of which the last delivers nothing."""
    ranks = [Rank(rank, 2, dataset=mixture()) for rank in range(2)]
    for step in (5, 10):
        for rank in ranks:
            rank.take(4)
            rank.save(tmp_path, step)
    for number in range(3):
        rank = Rank(number, 3, load_states(tmp_path, step=10), dataset=mixture(weight=4))
        rank.take(2 if number < 2 else 0)
        rank.save(tmp_path, 20)
    return tmp_path


def test_a_steps_folder_is_described(streamdata: Streamdata, saved: Path) -> None:
    """Step, topologies, weights, and per source what was delivered and what not."""
    done = streamdata("state", saved / "step-10")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"{saved / 'step-10'}: step 10, 2 ranks of 2",
        "generation 0: 2 ranks with 1 worker each; weights: a 3, b 1",
        "source  samples  tokens  epochs  wanted  achieved  records  dropped",
        *[line for line in done.stdout.splitlines() if line.startswith(("a ", "b "))],
        "32 samples, 0 tokens",
        "in pass 0",
        "no rank is missing",
    ]
    samples = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines() if line[:2] in ("a ", "b ")}
    assert samples == {"a": 24, "b": 8}


def test_schedules_are_shown_as_recipes_have_them(streamdata: Streamdata, tmp_path: Path) -> None:
    """Linear between points, and by steps."""
    sources = [Numbers("a", 40, [[0, 1], [1000, 0.25]]), Numbers("b", 40, {"steps": [[0, 0], [10, 1]]})]
    states: dict[str, object] = {}
    for sample in islice(MergedDataset(sources), 4):
        states.update(to_state([sample]))
    path = tmp_path / "states.json"
    path.write_text(json.dumps(states))
    done = streamdata("state", path)
    assert done.exit_code == 0, done.output
    assert "weights: a [[0.0, 1.0], [1000.0, 0.25]], b {steps: [[0.0, 0.0], [10.0, 1.0]]}\n" in done.stdout


def test_what_changed_is_said_and_the_sums_go_on(streamdata: Streamdata, saved: Path) -> None:
    """Over a change of topology and weights; of the directory the newest step is taken."""
    done = streamdata("state", saved)
    assert done.stdout.startswith(f"{saved}: step 20\n")
    assert "generation 1: 3 ranks with 1 worker each; weights: a 4, b 1; from step 1 on\n" in done.stdout
    assert done.stdout.endswith("delivered nothing since the topology last changed: rank 2\nno rank is missing\n")
    before, after = (
        [int(line.split()[-1]) for line in streamdata("state", path).stdout.splitlines() if line.startswith("b ")]
        for path in (saved / "step-10", saved)
    )
    assert after >= before > [0]
    samples = [int(line.split()[1]) for line in done.stdout.splitlines() if line[:2] in ("a ", "b ")]
    assert sum(samples) == 2 * 16 + 2 * 4


def test_a_missing_rank_is_named(streamdata: Streamdata, saved: Path) -> None:
    """Of a folder that lacks one, and of one rank's file alone; the CLI shows what is there."""
    path = saved / "step-10" / "rank-1.states"
    assert streamdata("state", path).stdout.endswith("missing: rank 0 of 2\n")
    path.unlink()
    assert streamdata("state", saved / "step-10").stdout.endswith("missing: rank 1 of 2\n")


def test_json_of_a_trainer_is_described_too(streamdata: Streamdata, saved: Path, tmp_path: Path) -> None:
    """Several files are one run's, joined."""
    path = tmp_path / "states.json"
    path.write_text(json.dumps(dict(load_states(saved, step=5))))
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    done = streamdata("state", path, empty)
    assert done.stdout.startswith(f"{path}, {empty}\ngeneration 0: 2 ranks with 1 worker each")
    assert done.stdout.endswith("no rank is missing\n")
    assert streamdata("state", empty).stdout == f"{empty}\nnothing was delivered yet\n"


def test_states_are_one_document_of_json(streamdata: Streamdata, saved: Path) -> None:
    """Totals over ranks since the beginning."""
    whole, before = (json.loads(streamdata("state", path, "--json").stdout) for path in (saved, saved / "step-10"))
    assert (whole["samples"], before["samples"]) == (40, 32)
    first, second = whole["sources"]
    assert first["name"] == "a"
    assert first["wanted"] == pytest.approx((0.75 * 32 + 0.8 * 8) / 40)
    assert first["achieved"] + second["achieved"] == pytest.approx(1)
    assert second["dropped"] > 0
    assert first["epochs"] == first["samples"] / 400
    assert second["epochs"] == second["records"] / 400
    assert (whole["ranks"], whole["workers"], whole["idle"], whole["passes"]) == (3, 1, [2], [0])
    assert [(one["ranks"], one["weights"]["a"]) for one in whole["generations"]] == [(2, 3), (3, 4)]


def test_the_names_of_sources_may_not_steer_a_terminal(streamdata: Streamdata, tmp_path: Path) -> None:
    """They come from states that somebody wrote."""
    states: dict[str, object] = {}
    for sample in islice(MergedDataset([Numbers("a\x1b[2Jb", 40)]), 4):
        states.update(to_state([sample]))
    (tmp_path / "states.json").write_text(json.dumps(states))
    done = streamdata("state", tmp_path / "states.json")
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "a\\x1b[2Jb" in done.stdout


def test_states_are_merged_into_one_file(streamdata: Streamdata, saved: Path, tmp_path: Path) -> None:
    """Of a step's folder, of ranks' files, or of what trainers wrote."""
    want = dict(load_states(saved, step=10))
    folder = saved / "step-10"
    parts = [Rank(rank, 2, dataset=mixture()) for rank in range(2)]
    for rank in parts:
        rank.take(8)
        (tmp_path / f"{rank.rank}.json").write_text(json.dumps(rank.states))
    assert through_json(merge_states(*(rank.states for rank in parts))) == want
    for inputs in (
        [folder],
        [folder / "rank-1.states", folder / "rank-0.states"],
        [tmp_path / "0.json", tmp_path / "1.json"],
    ):
        output = tmp_path / "out.json"
        done = streamdata("state", *inputs, "-o", output)
        assert done.exit_code == 0, done.output
        assert json.loads(output.read_text()) == want
        assert done.stdout == f"{output}: {len(want)} entries, {output.stat().st_size:,} bytes\n"
        output.unlink()


def test_merged_states_say_the_same_of_what_was_delivered(streamdata: Streamdata, saved: Path, tmp_path: Path) -> None:
    """Also where of some sources alone the entries were left out."""

    def make():
        return MergedDataset([Numbers("a", 40), Numbers("b", 40, records_per_block=20)], seed=1)

    home = tmp_path / "others"
    for step, size in enumerate((2, 3, 1, 2)):
        for number in range(size):
            rank = Rank(number, size, load_states(home, step=step - 1) if step else {}, dataset=make())
            rank.take(12)
            rank.save(home, step)
    for path in (saved / "step-20", home / "step-3"):
        output = tmp_path / "out.json"
        streamdata("state", path, "-o", output)
        before, after = (
            [line for line in streamdata("state", one).stdout.splitlines() if line.startswith(("a ", "b "))]
            for one in (path, output)
        )
        assert before == after
    assert sum(int(line.split()[1]) for line in after) == 8 * 12 * 2


def test_a_generation_without_entries_has_its_line(streamdata: Streamdata, tmp_path: Path) -> None:
    """What merging left out of it stays: its topology, its weights, and how much was drawn in it."""

    def plain():
        sources = [Numbers("a", 60, 2), Numbers("b", 40)]
        return MergedDataset(sources, seed=1, cyclic=False, stop="all_exhausted")

    given = 0
    for step, (size, batches) in enumerate([(2, 10), (3, 6), (2, 3)]):
        for number in range(size):
            rank = Rank(number, size, load_states(tmp_path, step=step - 1) if step else {}, dataset=plain())
            for _ in rank.take(batches):
                given += step == 0
            rank.save(tmp_path, step)
    output = tmp_path / "out.json"
    assert streamdata("state", tmp_path, "-o", output).exit_code == 0
    line = "generation 0: 2 ranks with 1 worker each; weights: a 2, b 1"
    want = f"{line}; {given} samples were drawn\n"
    for path in (tmp_path, output):  # a step leaves it out, too
        assert want in streamdata("state", path).stdout


def test_what_is_not_states_is_a_message(streamdata: Streamdata, saved: Path, tmp_path: Path) -> None:
    """That names the file; never a traceback."""
    torn = saved / "step-10" / "rank-0.states"
    torn.write_bytes(torn.read_bytes()[:-5])
    text = tmp_path / "text.json"
    text.write_text("not JSON")
    numbers = tmp_path / "numbers.json"
    numbers.write_text("[1, 2]")
    other = tmp_path / "other.json"
    other.write_text('{"x": 1}')
    for path in (torn, text, numbers, other, saved / "step-10"):
        done = streamdata("state", path)
        assert (done.exit_code, "Traceback" in done.output) == (1, False)
        assert done.stderr.startswith("error: ")
        assert str(path) in done.stderr


def test_a_ledgers_state_is_described(streamdata: Streamdata, tmp_path: Path) -> None:
    """Its prompts, as `stats` counts them, and its stream."""
    ledger = PromptLedger(mixture())
    prompts = ledger.take(9)
    ledger.done([prompt.id for prompt in prompts[:4]])
    ledger.drop([prompts[4].id], "all\nequal")
    ledger.retry([prompts[5].id], after=3)
    ledger.retry([prompts[6].id])
    ledger.score([prompts[0].id], [0.5])
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(ledger.state_dict()))
    lines = streamdata("state", file).stdout.splitlines()
    counts = "attempts 9, done/a 3, done/b 1, dropped/all\\nequal 1, due 2, open 2, taken/a 7, taken/b 2"
    assert lines[0] == f"{file}: prompts: {counts}"
    assert "generation 0: 1 rank with 1 worker each; weights: a 3, b 1" in lines
    assert json.loads(streamdata("state", file, "--json").stdout)["origin"].startswith("prompts: attempts 9, ")


def test_a_damaged_state_of_a_ledger_is_a_message(streamdata: Streamdata, tmp_path: Path) -> None:
    """That names the file, and what it is to hold: it may be a checkpoint that has the state in it."""
    file, state = tmp_path / "ledger.json", PromptLedger(mixture()).state_dict()
    for bad in ({"ledger": 3}, {"ledger": state["ledger"]}, state | {"ledger": {}}, {"step": 7, "ledger": state}):
        file.write_text(json.dumps(bad))
        done = streamdata("state", file)
        assert (done.exit_code, "Traceback" in done.output) == (1, False)
        assert f"error: {file}: expected the state itself, as to_state or PromptLedger" in done.stderr
