"""`streamdata trace`: the records of a step, the steps of a record, and how it ends."""

import json
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import instantiate_from_yaml, mixed_collate, to_state
from streamdata.errors import one_line


@pytest.fixture
def run(write_recipe, tmp_path):
    """A recipe, its states after nine batches of four, and these."""
    recipe, states = write_recipe(), {}
    loader = DataLoader(instantiate_from_yaml(recipe), 4, collate_fn=mixed_collate)
    batches = []
    for batch in islice(loader, 9):
        states.update(to_state(batch))
        batches.append([{"source": s["__datasetname__"], "url": s["__url__"], "key": s["__key__"]} for s in batch])
    path = tmp_path / "states.json"
    path.write_text(json.dumps(states))
    return recipe, path, batches


def test_the_records_of_each_step_are_one_document(streamdata, run):
    """The batch's size is as in the states; what is to come is traced too."""
    recipe, path, batches = run
    for step in (0, 8):
        done = streamdata("trace", recipe, path, "--step", step, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"step": step, "records": batches[step], "how": "seek", "from": 0}
    assert json.loads(streamdata("trace", recipe, path, "--step", 10**6, "--json").stdout)["from"] == 9


def test_a_record_is_found(streamdata, run):
    """At the step that had it, and in words."""
    recipe, path, batches = run
    record = batches[5][2]
    done = streamdata("trace", recipe, path, "--find", f"{record['url']}#{record['key']}", "--json")
    steps = json.loads(done.stdout)["steps"]
    assert done.exit_code == 0
    assert steps[0] == 5
    assert steps[1] >= 9
    words = streamdata("trace", recipe, path, "--find", f"{record['url']}#{record['key']}").stdout
    assert words == f"step 5\nstep {steps[1]}, which is still to come\n"


def test_what_is_not_there_ends_with_one(streamdata, run):
    """A record that no shard has, a shard that no source has; wrong usage with two."""
    recipe, path, batches = run
    done = streamdata("trace", recipe, path, "--find", f"{batches[0][0]['url']}#99", "--json")
    assert (done.exit_code, json.loads(done.stdout)["steps"]) == (1, [])
    done = streamdata("trace", recipe, path, "--find", "nowhere.jsonl#3")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: find: expected a record")
    assert streamdata("trace", recipe, path).exit_code == 2
    assert streamdata("trace", recipe, path, "--find", "x").exit_code == 2


def test_another_batch_than_the_states_say_is_a_message(streamdata, run):
    recipe, path, _ = run
    done = streamdata("trace", recipe, path, "--step", 1, "--batch", 3)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "they tell of batches of 4 samples, got 3" in done.stderr


def test_control_characters_are_shown_as_such():
    assert one_line("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
