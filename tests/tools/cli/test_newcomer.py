"""A newcomer's session: init, check, show, plan, train, kill, resume on another size, trace, find, state, report.

Every number that a command prints is compared with what the training loops logged.
"""

import json
from collections import Counter
from itertools import chain, count, islice

import pytest

from streamdata import StreamLoader, instantiate_from_yaml, load_states, mixed_collate, report, save_states
from streamdata.tools.trace.era import record_of
from tests.shard_files import write_tars

BATCH = 4
LEGS = ((2, 12, 10), (3, 9, 9))
"""Ranks, steps, and how many of them are saved, of each leg of the run: the first one is killed after its save."""
RECORDS = {"pictures": 50, "notes": 60}


def train(recipe, folder, ranks, steps, saved):
    """One leg: what each rank's batches were made of, up to the last step that was saved."""
    try:
        states = load_states(folder)
        first = states.step + 1
    except FileNotFoundError:
        states, first = {}, 1
    logged = []
    for rank in range(ranks):
        dataset = instantiate_from_yaml(recipe)
        dataset.set_data_parallel(ranks, rank)
        loader = StreamLoader(dataset, BATCH, collate=mixed_collate)
        loader.load_state_dict(states)
        batches = []
        for step, batch in zip(count(first), islice(loader, steps), strict=False):
            batches.append([record_of(sample) for sample in batch])
            if step == first + saved - 1:
                save_states(folder, loader.state_dict(), step=step, rank=rank, size=ranks)
        logged.append(batches[:saved])  # what came after it is drawn again: the leg was killed
    return [list(chain(*of_step)) for of_step in zip(*logged, strict=True)]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Data as people have it, and the folder of a run."""
    folder = tmp_path_factory.mktemp("newcomer")
    write_tars(folder / "pictures", [30, 20], sidecars=False)
    (folder / "notes.jsonl").write_text("".join(f'{{"text": "note {number}"}}\n' for number in range(60)))
    return folder


def test_each_number_is_what_the_loops_logged(streamdata, session, monkeypatch):
    """From files to a report."""
    monkeypatch.chdir(session)

    def printed(*arguments):
        done = streamdata(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    assert streamdata("init", "pictures", "notes.jsonl").exit_code == 0
    assert streamdata("check", "recipe.yaml").stdout.endswith("0 errors, 0 warnings, 0 not checked\n")
    steps = []
    for ranks, length, saved in LEGS:
        if not steps:  # before anything was read: what the run begins with
            shown = printed("show", "recipe.yaml", "-n", BATCH, "--ranks", ranks)["samples"]
            total = sum(ranks * saved * BATCH for ranks, _, saved in LEGS)
            planned = printed("plan", "recipe.yaml", "--samples", total, "--ranks", ranks, "--batch", BATCH)
        steps += train("recipe.yaml", "saved", ranks, length, saved)
    assert [(each["source"], each["key"]) for each in shown] == [(r["source"], r["key"]) for r in steps[0][:BATCH]]

    saves = ["saved/step-10", "saved/step-19"]
    for step, records in enumerate(steps, 1):
        assert printed("trace", "recipe.yaml", *saves, "--step", step)["records"] == records, step
    wanted = steps[14][5]
    found = printed("trace", "recipe.yaml", *saves, "--find", f"{wanted['url']}#{wanted['key']}")
    came = [step for step, records in enumerate(steps, 1) if wanted in records]
    assert (found["steps"][: len(came)], found["delivered"]) == (came, len(steps))

    logged = Counter(record["source"] for record in chain(*steps))
    state, numbers = printed("state", "saved"), report(load_states("saved"))
    assert (state["samples"], state["steps"]) == (numbers["samples"], numbers["steps"]) == (total, len(steps))
    began = [(each["generation"], each["ranks"], each["workers"], each["step"]) for each in state["generations"]]
    assert began == [(0, 2, 1, 0), (1, 3, 1, 10)]
    assert (state["ranks"], state["workers"], state["passes"], state["missing"], state["idle"]) == (3, 1, [0], [], [])
    for source in state["sources"]:
        name = source.pop("name")
        assert source == {what: numbers[f"{what}/{name}"] for what in source}
        told = {what: source.pop(what) for what in ("samples", "records", "epochs", "wanted", "achieved")}
        assert told == {
            "samples": logged[name],
            "records": logged[name],
            "epochs": pytest.approx(logged[name] / RECORDS[name]),
            "wanted": 0.5,
            "achieved": logged[name] / total,
        }
        assert set(source.values()) == {0}  # no tokens, and nothing was dropped or filled up

    assert (planned["samples"], planned["dp"], planned["lanes"], planned["batch"]) == (total, 2, 2, BATCH)
    first_repeats = firsts_repeated(chain(*steps))
    for source in planned["sources"]:
        name = source["name"]
        assert (source["records"], source["share"]) == (RECORDS[name], 0.5)
        assert source["samples"] == pytest.approx(logged[name], rel=0.02, abs=2)
        assert source["epochs"] == pytest.approx(logged[name] / RECORDS[name], rel=0.02, abs=0.04)
        # The plan is of one size; lanes that are dealt anew come to their second epochs a few batches apart.
        assert source["first_repeat"] == pytest.approx(first_repeats[name], abs=3 * BATCH)


def firsts_repeated(records):
    """By source, the number of the first sample, from 1, whose record came before."""
    seen, found = set(), {}
    for number, record in enumerate(records, 1):
        name = json.dumps(record)
        if name in seen:
            found.setdefault(record["source"], number)
        seen.add(name)
    return found
