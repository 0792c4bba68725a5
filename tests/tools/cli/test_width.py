"""Lines fit the terminal, at 80 columns and at 120: wrapped at spaces, tables with long names shortened."""

import json
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import instantiate_from_yaml, mixed_collate, save_states, to_state

LONG = "a_source_with_a_name_that_is_longer_than_anybody_would_like_it_to_be_on_a_terminal"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A recipe with long names, and what a run of it has saved."""
    folder = tmp_path_factory.mktemp("wide")
    for name in ("lines", "more"):
        lines = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(40))
        (folder / f"{name}.jsonl").write_text(lines)
    recipe = folder / "recipe.yaml"
    sources = "".join(
        f"    - target: streamdata.JsonlIterableDataset\n      name: {name}\n      percent: 1\n"
        f"      params: {{path: {folder}/{file}.jsonl}}\n"
        for name, file in ((LONG, "lines"), ("b", "more"))
    )
    recipe.write_text(f"target: streamdata.MergedDataset\nparams:\n  datasets:\n{sources}")
    states = {}
    for batch in islice(DataLoader(instantiate_from_yaml(recipe), 4, collate_fn=mixed_collate), 5):
        states.update(to_state(batch))
    save_states(folder / "saved", states, step=5, rank=0, size=1)
    return recipe, folder / "saved" / "step-5", folder


COMMANDS = ("check", "check --data", "run --batches 3", "state", "trace --step 2", "trace --find", "index")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [*COMMANDS, "index --check", ""])
def test_lines_fit(streamdata, run, monkeypatch, command, columns):
    """But one that is a path, or a word, alone."""
    monkeypatch.setenv("COLUMNS", str(columns))
    recipe, states, folder = run
    name, *options = command.split() or [""]
    named = {"state": [states], "trace": [recipe, states], "index": [f"{folder}/*.jsonl"], "": []}.get(name, [recipe])
    found = [f"{folder}/lines.jsonl#3"] if options == ["--find"] else []
    for arguments in ([name, *named, *options, *found], [name, "--help"]):
        done = streamdata(*filter(None, arguments))
        text = done.stdout + done.stderr
        assert text, done
        too_long = [line for line in text.splitlines() if len(line) > columns and " " in line.strip(" ─│╭╰╮╯")]
        assert too_long == []


@pytest.mark.parametrize("columns", [80, 120])
def test_errors_fit(streamdata, run, monkeypatch, columns):
    """The message, its place and its remedy."""
    monkeypatch.setenv("COLUMNS", str(columns))
    recipe, states, folder = run
    broken = folder / "broken.yaml"
    broken.write_text(recipe.read_text().replace("percent: 1", "prcent: 1"))
    for arguments in (["check", broken], ["run", broken], ["trace", recipe, states, "--find", "no/where#1"]):
        done = streamdata(*arguments)
        assert done.exit_code == 1
        text = done.stdout + done.stderr
        assert [line for line in text.splitlines() if len(line) > columns and " " in line.strip()] == []


def test_what_is_no_terminal_is_not_wrapped(streamdata, run, monkeypatch):
    """So that a pipe finds a message in one line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    recipe, states, _ = run
    done = streamdata("trace", recipe, states, "--find", "no/where#1")
    assert "error: find: expected a record of a source of the recipe, got 'no/where#1'" in done.stderr
