"""`streamdata trace`: the records of a step, the steps of a record, and how it ends."""

import json
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from streamdata import instantiate_from_yaml, mixed_collate, save_states, to_state
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
    for step in (1, 9):
        done = streamdata("trace", recipe, path, "--step", step, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"step": step, "records": batches[step - 1], "how": "seek", "from": 0}
    assert streamdata("trace", recipe, path, "--step", 0).exit_code == 2
    assert json.loads(streamdata("trace", recipe, path, "--step", 10**6, "--json").stdout)["from"] == 9


def test_records_stand_beside_the_rows_of_the_batch(streamdata, run):
    """Counted from 0, as the batch is."""
    recipe, path, batches = run
    _, title, *lines = streamdata("trace", recipe, path, "--step", 6).stdout.splitlines()
    assert title.split() == ["source", "row", "record"]
    found = [(source, row, record.partition("#")[2]) for source, row, record in map(str.split, lines)]
    assert found == [(each["source"], str(row), each["key"]) for row, each in enumerate(batches[5])]


def test_a_record_is_found(streamdata, run):
    """At the step that had it, and in words."""
    recipe, path, batches = run
    record = batches[5][2]
    done = streamdata("trace", recipe, path, "--find", f"{record['url']}#{record['key']}", "--json")
    steps = json.loads(done.stdout)["steps"]
    assert done.exit_code == 0
    assert steps[0] == 6
    assert steps[1] > 9
    words = streamdata("trace", recipe, path, "--find", f"{record['url']}#{record['key']}").stdout
    assert words == f"step 6\nstep {steps[1]}, which is still to come\n"


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


def test_a_batch_size_is_of_steps_to_come(streamdata, run):
    """Of past ones the states say it."""
    recipe, path, batches = run
    traced = [streamdata("trace", recipe, path, "--step", step, "--batch", 3, "--json").stdout for step in (9, 10)]
    assert json.loads(traced[0])["records"] == batches[8]
    assert len(json.loads(traced[1])["records"]) == 3


def saves(folder, recipe, steps, batches_per_step, first_step=0):
    """What each step was made of, saved at some of them."""
    dataset, states, records = instantiate_from_yaml(recipe), {}, []
    loader = iter(DataLoader(dataset, 2, collate_fn=mixed_collate))
    for step in range(first_step + 1, first_step + max(steps) + 1):
        batches = [next(loader) for _ in range(batches_per_step)]
        states.update(to_state(batches))
        records.append([sample["__key__"] for batch in batches for sample in batch])
        if step - first_step in steps:
            save_states(folder, states, step=step, rank=0, size=1)
    return records


@pytest.mark.parametrize(("batches_per_step", "first_step"), [(4, 0), (1, 1000), (3, 500)])
def test_a_loop_may_count_other_steps_than_batches(streamdata, write_recipe, tmp_path, batches_per_step, first_step):
    """How many batches its steps have, and with which it began, follows from two saves, or one and the option."""
    recipe = write_recipe()
    records = saves(tmp_path / "saved", recipe, {2, 5}, batches_per_step, first_step)
    folders = [tmp_path / "saved" / f"step-{first_step + step}" for step in (2, 5)]
    for given in (folders, [folders[1], "--batches-per-step", batches_per_step]):
        for number in (1, 3, 5):
            done = streamdata("trace", recipe, *given, "--step", first_step + number, "--json")
            assert [record["key"] for record in json.loads(done.stdout)["records"]] == records[number - 1]
            assert f"step N has {batches_per_step} batches" in done.stderr
    done = streamdata("trace", recipe, folders[1], "--step", first_step + 1)
    assert done.exit_code == 1
    assert "Give --batches-per-step, or states of two steps" in done.stderr


def test_control_characters_are_shown_as_such():
    assert one_line("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
