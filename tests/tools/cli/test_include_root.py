"""Commands that read a recipe include files from folders that the caller names."""

import json
from itertools import islice
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streamdata import instantiate_from_yaml, mixed_collate, to_state

COMMANDS = [
    ["check"],
    ["check", "--resume"],
    ["check", "--data", "-j", 1],
    ["plan", "--samples", 10, "--read", 1],
    ["profile", "--seconds", 0.1, "--workers", 0],
    ["run", "--batches", 2],
    ["show", "-n", 1],
    ["show", "-n", 1, "--html", "page.html"],
    ["trace", "STATES", "--step", 1],
]


@pytest.fixture
def recipe(write_recipe, tmp_path, monkeypatch) -> Path:
    """A recipe all of which lies elsewhere, where the command is run, with its states beside it."""
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    for folder in (elsewhere, here):
        folder.mkdir()
    states, mixture = {}, write_recipe()
    for batch in islice(DataLoader(instantiate_from_yaml(mixture), 4, collate_fn=mixed_collate), 2):
        states.update(to_state(batch))
    (here / "states.json").write_text(json.dumps(states))
    mixture.rename(elsewhere / "mixture.yaml")
    (here / "top.yaml").write_text(f"include: {elsewhere}/mixture.yaml\n")
    monkeypatch.chdir(here)
    return here / "top.yaml"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command[:2])))
def test_a_command_includes_from_the_folders_that_it_is_told(streamdata, recipe, command) -> None:
    """And from no other."""
    arguments = [command[0], recipe, *("states.json" if word == "STATES" else word for word in command[1:])]
    refused = streamdata(*arguments)
    assert (refused.exit_code, "lies outside" in refused.output) == (1, True), refused.output
    done = streamdata(*arguments, "--include-root", recipe.parents[1] / "elsewhere")
    assert done.exit_code == 0, done.output
