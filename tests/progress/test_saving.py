"""Steps that ranks save and load: all of it or an error that says what is missing, torn or of another run."""

import json
import logging
import os
import re
import shutil
import signal
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch.distributed as dist

from streamdata import MergedDataset, StateError, load_states, merge_states, save_states, to_state
from streamdata.progress import compact, ranks, saving, state_file
from streamdata.progress.ranks import group_name
from streamdata.progress.saved_states import read_states
from tests.ranks import apart, run_on_ranks
from tests.streams import Numbers, loaded, plain, through_json


def make(weight=2, size=40, seed=4, **settings):
    """Two sources, one in a mixture of its own."""
    inner = MergedDataset([Numbers("b", 30)], name="mix", percent=1)
    return MergedDataset([Numbers("a", size, weight), inner], seed=seed, **settings)


class Rank:
    """A trainer's rank: it takes batches, saves and goes on."""

    def __init__(self, rank, size, states=None, *, num_workers=0, dataset=None):
        self.rank, self.size = rank, size
        self.states = {} if states is None else states
        dataset = dataset or make()
        dataset.set_data_parallel(size, rank)
        dataset.set_dataloader_states(self.states)
        self.batches = iter(loaded(dataset, num_workers, 2))

    def take(self, batches):
        """The samples of some batches."""
        samples = []
        for batch in islice(self.batches, batches):
            samples += map(plain, batch)
            self.states.update(to_state(batch))
        return samples

    def save(self, directory, step):
        save_states(directory, self.states, step=step, rank=self.rank, size=self.size)


def run(directory, steps, *, size=2, states=None, batches=3, **settings):
    """Ranks that save some steps; of each what it held after the last."""
    ranks = [Rank(rank, size, None if states is None else states(), **settings) for rank in range(size)]
    for step in steps:
        for number, rank in enumerate(ranks):
            rank.take(batches + number)
            rank.save(directory, step)
    return [dict(rank.states) for rank in ranks]


def files(directory):
    """All that is there, by name."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_what_ranks_saved_is_loaded_as_one(tmp_path):
    """As merge_states would join it: plain JSON, a file for each rank, the newest step as a number."""
    parts = run(tmp_path, [9, 10])
    states = load_states(tmp_path)
    assert files(tmp_path) == [f"step-{step}/rank-{rank}.states" for step in (10, 9) for rank in (0, 1)]
    assert (states.step, dict(states)) == (10, merge_states(*parts))
    assert json.loads(json.dumps(dict(states))) == dict(states)
    assert load_states(tmp_path, step=9).step == 9


@pytest.mark.parametrize("keep", [lambda states: states, dict, lambda states: through_json(dict(states))])
def test_a_resume_goes_on_and_saves_again(tmp_path, keep):
    """From the mapping that was loaded, or a plain dict of it: the stream is the suffix, leg after leg."""
    want = [Rank(rank, 2).take(30) for rank in range(2)]
    got = [[], []]
    for step in range(5):
        for rank in range(2):
            trainer = Rank(rank, 2, keep(load_states(tmp_path, step=step - 1)) if step else None)
            got[rank] += trainer.take(4 + rank)
            trainer.save(tmp_path, step)
    for rank in range(2):
        assert got[rank] == want[rank][: len(got[rank])]


def test_the_log_says_which_step_was_loaded(tmp_path, caplog):
    """In one line."""
    run(tmp_path, [7])
    with caplog.at_level(logging.INFO, "streamdata"):
        load_states(tmp_path)
    assert [record.message for record in caplog.records] == [f"states: step 7 of 2 ranks, from {tmp_path}"]


def test_rank_and_size_are_found(tmp_path, monkeypatch):
    """In the environment, as the dataset finds them; one replica without."""
    run(tmp_path, [1], size=1)
    save_states(tmp_path / "alone", load_states(tmp_path), step=1)
    assert files(tmp_path / "alone") == ["step-1/rank-0.states"]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rank = Rank(1, 2)
    rank.take(1)
    save_states(tmp_path / "two", rank.states, step=3)
    assert files(tmp_path / "two") == ["step-3/rank-1.states"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": -1}, "expected a step"),
        ({"step": True}, "expected a step"),
        ({"step": 1.0}, "expected a step"),
        ({"step": 1, "rank": 0}, "both rank and size"),
        ({"step": 1, "rank": 2, "size": 2}, "0 <= dp_rank < dp_size"),
        ({"step": 1, "rank": 0, "size": 3}, "dp_size=1, got size=3"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    """Before anything is written; another number of ranks than the states', too."""
    rank = Rank(0, 1)
    rank.take(2)
    with pytest.raises(ValueError, match=message):
        save_states(tmp_path, rank.states, **arguments)
    assert files(tmp_path) == []


@pytest.mark.parametrize("states", [{"x": 1}, {"worker/0/0/0": 1}, {"cursor/0/0/0/0/a": 1}, [1], {"generation/0": 3}])
def test_what_is_not_states_is_not_saved(tmp_path, states):
    """It could not be loaded."""
    with pytest.raises(StateError, match="states: "):
        save_states(tmp_path, states, step=1)
    assert files(tmp_path) == []


def test_a_step_that_lacks_a_rank_is_passed_over_with_a_warning(tmp_path, caplog):
    """For the newest that has all; asked for by its number it is an error that names the rank."""
    run(tmp_path, [9, 10, 11], size=3)
    (tmp_path / "step-11" / "rank-1.states").unlink()
    (tmp_path / "step-12").mkdir()
    assert load_states(tmp_path).step == 10
    assert "step-12 is passed over, since it lacks every rank" in caplog.text
    assert "step-11 is passed over, since it lacks rank 1 of 3" in caplog.text
    with pytest.raises(StateError, match="lacks rank 1 of 3"):
        load_states(tmp_path, step=11)
    for step in (9, 10):
        (tmp_path / f"step-{step}" / "rank-2.states").unlink()
    with pytest.raises(StateError, match=r"no step(.|\n)*step 11 lacks rank 1 of 3\n.*step 10 lacks rank 2 of 3"):
        load_states(tmp_path)


def test_where_nothing_is_saved_is_said(tmp_path):
    """It is a FileNotFoundError, so that a trainer can tell a fresh start."""
    for step in (None, 3):
        with pytest.raises(FileNotFoundError, match="no states are saved there"):
            load_states(tmp_path / "none", step=step)
    run(tmp_path, [4])
    with pytest.raises(FileNotFoundError, match="step-3: this step is not saved, the newest ones are 4"):
        load_states(tmp_path, step=3)


def test_a_torn_file_is_named_whatever_its_length(tmp_path):
    """Every prefix, and a change of any byte: an older step is not taken instead."""
    run(tmp_path, [1, 2], batches=1)
    path = tmp_path / "step-2" / "rank-1.states"
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(StateError, match=re.escape(str(path))):
            load_states(tmp_path)
    for position in range(0, len(content), 7):
        path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        with pytest.raises(StateError, match=re.escape(str(path))):
            load_states(tmp_path)


@pytest.mark.parametrize(
    ("line", "damage"),
    [
        (1, lambda entries: entries["entries"].update({"a": 1})),
        (1, lambda entries: entries["rare"].update({"0": 7})),
        (1, lambda entries: entries["rare"].update({"0": {"draws": 7}})),
        (1, lambda entries: entries["rare"].update({"0": {"left_out": "1"}})),
        (1, lambda entries: entries["entries"].update({"cursor/0/0/0/0/a": {"draws": -1}})),
        (2, lambda cursors: cursors["draws"].__setitem__(0, -1)),
        (2, lambda cursors: cursors["paths"].append(7)),
        (2, lambda cursors: cursors.pop("taken")),
        (2, lambda cursors: cursors.pop("rank")),
        (0, lambda headers: headers["generation/0"].pop("deal")),
        (0, lambda headers: headers.update({"generation/x": headers["generation/0"]})),
        (0, lambda headers: headers.update({"65535": headers["generation/0"]})),
        (0, lambda headers: headers.update({"lane/0/0/0/0": headers["generation/0"]})),
        (1, lambda entries: entries["entries"].update({"generation/0": 7})),
        (-1, lambda envelope: envelope.pop("streamdata_states")),
        (-1, lambda envelope: envelope.update(size=2**31)),
    ],
)
@pytest.mark.parametrize("load", [load_states, lambda path: read_states([path / "step-1" / "rank-0.states"])])
def test_what_save_states_does_not_write_is_refused(tmp_path, line, damage, load):
    """Though its checksum is right: what another program wrote."""
    run(tmp_path, [1])
    path = tmp_path / "step-1" / "rank-0.states"
    envelope, *lines = map(json.loads, path.read_bytes().splitlines())
    damage(lines[line] if line >= 0 else envelope)
    texts = [json.dumps(part).encode() for part in lines]
    del envelope["checksum"]
    envelope["checksum"] = state_file._checksum(envelope, texts)
    path.write_bytes(b"".join(text + b"\n" for text in (json.dumps(envelope).encode(), *texts)))
    with pytest.raises(StateError, match=r"rank-0\.states"):
        load(tmp_path)


def test_a_file_of_another_step_rank_or_size_is_refused(tmp_path):
    """By what is in it: its name does not count. It is not passed over either."""
    run(tmp_path / "two", [1, 2])
    run(tmp_path / "three", [2], size=3)
    for source, message in [
        (tmp_path / "two" / "step-1" / "rank-1.states", "expected step 2, got a file of step 1"),
        (tmp_path / "two" / "step-2" / "rank-0.states", "expected rank 1, got a file of rank 0"),
        (tmp_path / "three" / "step-2" / "rank-1.states", "of size 3(.|\n)*of size 2"),
    ]:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "two", copy)
        shutil.copy(source, copy / "step-2" / "rank-1.states")
        with pytest.raises(StateError, match=message) as raised:
            load_states(copy)
        assert "rank-1.states" in str(raised.value)


@pytest.mark.parametrize("keep", [lambda states: states, dict])
@pytest.mark.parametrize("others", [lambda folder: load_states(folder, step=1), lambda folder: {}])
def test_a_file_of_another_branch_is_refused(tmp_path, keep, others):
    """One rank had gone on from another step than the other, or begun without states: also from a dict of them."""
    run(tmp_path, [1, 2])
    held = [keep(load_states(tmp_path, step=2)), keep(others(tmp_path))]
    for number, states in enumerate(held):
        rank = Rank(number, 2, states)
        rank.take(3)
        rank.save(tmp_path, 3)
    with pytest.raises(StateError, match=r"rank 1 and rank 0 are not of one run(.|\n)*rank-1.states: (desc|of a run)"):
        load_states(tmp_path)


def step_of_a_rank(folder, number, states):
    """One of two ranks goes on, and saves step 2."""
    rank = Rank(number, 2, states)
    rank.take(2)
    rank.save(folder, 2)


def test_ranks_that_were_sent_a_dict_are_of_no_other_branch(tmp_path):
    """Of a plain dict nobody knows where it comes from: that is no reason to refuse it beside the one that loaded."""
    run(tmp_path, [1])
    sent = through_json(dict(load_states(tmp_path)))
    apart(step_of_a_rank, tmp_path, 1, sent)
    step_of_a_rank(tmp_path, 0, load_states(tmp_path))
    assert load_states(tmp_path).step == 2


@pytest.mark.parametrize(
    ("change", "message"), [({"weight": 5}, "weights: a=5.0"), ({"num_workers": 3}, "num_workers=3")]
)
def test_ranks_that_differ_are_refused(tmp_path, change, message):
    """In their recipe or in their number of workers: both files are named, and what differs."""
    settings = [{}, change]
    for number, changed in enumerate(settings):
        num_workers = changed.pop("num_workers", 2)
        rank = Rank(number, 2, num_workers=num_workers, dataset=make(**changed))
        rank.take(4)
        rank.save(tmp_path, 1)
    with pytest.raises(StateError, match=f"rank 1 and rank 0 are not of one run(.|\n)*rank-1.states: .*{message}"):
        load_states(tmp_path)


def test_a_rank_that_delivered_nothing_is_recorded(tmp_path):
    """At the start, later, and no more once it has delivered something."""
    first, idle = Rank(0, 2), Rank(1, 2)
    for rank in (first, idle):
        rank.save(tmp_path, 0)
    assert dict(load_states(tmp_path)) == {}
    first.take(3)
    for step in (1, 2):
        for rank in (first, idle):
            rank.save(tmp_path, step)
        states = load_states(tmp_path)
        assert dict(states) == dict(first.states) | {"idle/0/1": True}
        first.states, idle.states = states, load_states(tmp_path)
    later = Rank(1, 2)
    later.take(1)
    idle.states.update(later.states)
    for rank in (first, idle):
        rank.save(tmp_path, 3)
    assert not [key for key in load_states(tmp_path) if key.startswith("idle/")]


def entries(*, generation, rank, workers=1, dp_size=2, deal=None):
    """Made-up entries of one rank, with the header of a deal."""
    key = f"{generation}/0/{rank}"
    cursor = {"draws": 5, "clock": 2.5, "epoch": 0, "window": 1, "taken": rank}
    header = {"format": 1, "dp_size": dp_size, "num_workers": workers, "nodes": {"a": "text"}, "weights": {"a": 1.0}}
    if deal is not None:
        begun = {"step": 3, "pass": 0, "base": {"0": {"time": 10}}, "dealt": "00", "history": []}
        header |= {"format": 2, "deal": deal, **begun}
    return {
        f"generation/{generation}": header,
        f"worker/{key}": 0,
        f"lane/{key}/0": {"batches": 3},
        f"drawn/{key}/0/": 5,
        f"cursor/{key}/0/a": cursor,
    }


@pytest.fixture
def two_formats(monkeypatch):
    """Headers with deals pass, whichever format the present code writes."""
    for module in (saving, sys.modules["streamdata.progress.joining"]):
        monkeypatch.setattr(module, "checked_header", dict)


@pytest.mark.usefixtures("two_formats")
@pytest.mark.parametrize("idle", [(), (0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("keep", [lambda states: states, dict])
def test_a_step_needs_no_other_folder_after_a_change_of_topology(tmp_path, keep, idle):
    """What the old ranks had delivered is in the new step's folder once, whoever has delivered nothing since."""
    for rank in range(2):
        save_states(tmp_path, entries(generation=0, rank=rank), step=1, rank=rank, size=2)
    old = dict(load_states(tmp_path))
    want = dict(old)
    for rank in range(3):
        states = keep(load_states(tmp_path, step=1))
        if rank not in idle:
            fresh = entries(generation=1, rank=rank, dp_size=3, deal=1)
            states.update(fresh)
            want |= fresh
        save_states(tmp_path, states, step=2, rank=rank, size=3)
    if len(idle) < 3:
        want |= {f"idle/1/{rank}": True for rank in idle}
    shutil.rmtree(tmp_path / "step-1")
    assert compact(load_states(tmp_path)) == compact(want)
    if not idle and keep is not dict:
        sizes = [path.stat().st_size for path in sorted((tmp_path / "step-2").iterdir())]
        assert sizes[0] > sizes[1] + 100
        assert abs(sizes[1] - sizes[2]) < 8


@pytest.mark.usefixtures("two_formats")
@pytest.mark.parametrize("idle", [(), (0,), (1,)])
def test_other_workers_are_a_change_of_topology(tmp_path, idle):
    """The number of ranks stays: each writes its own of the present deal, and rank 0 what all had delivered before."""
    for rank in range(2):
        save_states(tmp_path, entries(generation=0, rank=rank), step=1, rank=rank, size=2)
    want = dict(load_states(tmp_path))
    for rank in range(2):
        states = load_states(tmp_path, step=1)
        if rank not in idle:
            fresh = entries(generation=1, rank=rank, workers=2, deal=1)
            states.update(fresh)
            want |= fresh
        save_states(tmp_path, states, step=2, rank=rank, size=2)
    shutil.rmtree(tmp_path / "step-1")
    want |= {f"idle/1/{rank}": True for rank in idle}
    assert compact(load_states(tmp_path)) == compact(want)


def test_an_epoch_is_whole_over_changes_of_size(tmp_path):
    """Each run saves, another number of ranks and workers loads: together they deliver every record once."""

    def finite():
        sources = [Numbers("a", 90, 2), Numbers("b", 60)]
        return MergedDataset(sources, seed=5, cyclic=False, stop="all_exhausted")

    values = []
    for step, (size, num_workers) in enumerate([(2, 2), (3, 0), (3, 2), (1, 0), (4, 1)]):
        states = [load_states(tmp_path) if step else {} for _ in range(size)]
        for number in range(size):
            rank = Rank(number, size, states[number], num_workers=num_workers, dataset=finite())
            values += [(sample["__datasetname__"], sample["value"]) for sample in rank.take(number if step < 4 else 99)]
            rank.save(tmp_path, step)
        if step:
            shutil.rmtree(tmp_path / f"step-{step - 1}")
    assert sorted(values) == [(name, value) for name, size in (("a", 90), ("b", 60)) for value in range(size)]


def test_steps_do_not_grow_with_each_topology_that_the_run_had(tmp_path):
    """What no resume needs is not saved again, and the stream goes on as if it had been."""
    kept, sizes = {}, []
    for step, size in enumerate([2, 3, 1, 2, 3, 1, 2, 3, 1, 2]):
        from_step = [Rank(number, size, load_states(tmp_path) if step else {}) for number in range(size)]
        from_kept = [Rank(number, size, dict(kept)) for number in range(size)]
        for one, other in zip(from_step, from_kept, strict=True):
            assert one.take(40) == other.take(40)
            one.save(tmp_path, step)
        kept = merge_states(*(rank.states for rank in from_kept))
        sizes.append(len(load_states(tmp_path)))
    assert sizes[-1] < len(kept) / 4
    assert max(sizes[5:]) <= max(sizes[:5])


def test_a_smaller_run_replaces_what_a_larger_one_had_saved_at_the_step(tmp_path):
    """It had come further before it was given up; its files must not make the step one of two runs."""
    run(tmp_path, [5], size=4)
    run(tmp_path, [5], size=2)
    assert load_states(tmp_path).step == 5
    assert files(tmp_path) == ["step-5/rank-0.states", "step-5/rank-1.states"]


def test_a_missing_rank_rewinds_to_its_newest_entry(tmp_path, caplog):
    """The others go on from the newest step; it is said what comes again, before anything is read."""
    size = 3
    ranks = [Rank(rank, size) for rank in range(size)]
    streams = [[], [], []]
    for step in (1, 2, 3):
        for rank in ranks:
            streams[rank.rank] += rank.take(4)
            if step < 3 or rank.rank != 1:
                rank.save(tmp_path, step)
    with caplog.at_level(logging.INFO, "streamdata"):
        states = load_states(tmp_path, missing="rewind")
    assert states.step == 3
    assert "lacks rank 1: it goes on from its entry of step 2; about 8 of its samples come again" in caplog.text
    for rank, stream in enumerate(streams):
        resumed = Rank(rank, size, load_states(tmp_path, missing="rewind")).take(4)
        want = Rank(rank, size).take(20)
        delivered = len(stream) - (8 if rank == 1 else 0)
        assert resumed == want[delivered : delivered + 8]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_no_older_step_has_goes_on_from_what_was_loaded_or_its_start(tmp_path, rank, caplog):
    """The step that the run had loaded has it; of a run that had loaded none nothing is held."""
    run(tmp_path, [1, 2], size=3)
    at_2 = dict(load_states(tmp_path))
    run(tmp_path, [3], size=3, states=lambda: load_states(tmp_path, step=2))
    at_3 = dict(load_states(tmp_path))
    (tmp_path / "step-3" / f"rank-{rank}.states").unlink()
    states = dict(load_states(tmp_path, missing="rewind"))
    assert f"lacks rank {rank}: it goes on from its entry of step 2" in caplog.text
    of_rank = {key for key in at_2 if not key.startswith("generation/") and key.split("/")[3] == str(rank)}
    assert of_rank
    assert states == at_3 | {key: at_2[key] for key in of_rank}
    run(tmp_path / "fresh", [1], size=3)
    (tmp_path / "fresh" / "step-1" / f"rank-{rank}.states").unlink()
    states = load_states(tmp_path / "fresh", missing="rewind")
    assert f"lacks rank {rank}: it goes on from its start" in caplog.text
    assert states[f"idle/0/{rank}"] is True


def test_a_rank_that_no_step_has_goes_on_from_states_that_came_from_elsewhere(tmp_path, caplog):
    """No file but rank 0's has what these said of it."""
    sent = through_json(merge_states(*run(tmp_path / "before", [1])))
    for rank in range(2):
        apart(step_of_a_rank, tmp_path, rank, sent)
    (tmp_path / "step-2" / "rank-1.states").unlink()
    states = load_states(tmp_path, missing="rewind")
    assert "lacks rank 1: it goes on from its entry in what rank 0 had loaded; about 2 of its samples" in caplog.text
    of_rank = {key for key in sent if not key.startswith("generation/") and key.split("/")[3] == "1"}
    assert of_rank
    assert {key: states[key] for key in of_rank} == {key: sent[key] for key in of_rank}


@pytest.mark.parametrize("keep", [lambda states: states, dict, lambda states: through_json(dict(states))])
def test_more_ranks_go_on_from_what_a_single_one_saved(tmp_path, caplog, keep):
    """Whose states are all there are: a rank that has delivered nothing of them saves, and one that is missing rewinds.

    What that had saved before counts, though rank 0 has gone on from a plain dict.
    """
    run(tmp_path, [1], size=1)
    ranks = [Rank(rank, 3, keep(load_states(tmp_path, step=1))) for rank in range(3)]
    for step in (2, 3):
        for rank in ranks:
            rank.take(0 if rank.rank == 1 else 4)
            rank.save(tmp_path, step)
    (tmp_path / "step-3" / "rank-2.states").unlink()
    load_states(tmp_path, missing="rewind")
    assert "rank 2: it goes on from its entry of step 2; about 8 of its samples" in caplog.text


def test_what_rank_0_saves_for_ranks_that_are_no_more_is_rewound_to(tmp_path):
    """What was delivered before the topology changed, nobody else has saved."""
    run(tmp_path, [1], size=3)
    at_1 = dict(load_states(tmp_path))
    run(tmp_path, [2], size=2, states=lambda: load_states(tmp_path, step=1))
    (tmp_path / "step-2" / "rank-0.states").unlink()
    states = load_states(tmp_path, missing="rewind")
    assert {key: states.get(key) for key in at_1} == at_1


def test_what_no_file_has_cannot_be_rewound(tmp_path):
    """Rank 0 saves for all what they had loaded: without it and the step that was loaded, that is lost."""
    run(tmp_path, [1])
    run(tmp_path, [2], states=lambda: load_states(tmp_path, step=1))
    shutil.rmtree(tmp_path / "step-1")
    (tmp_path / "step-2" / "rank-0.states").unlink()
    with pytest.raises(StateError, match="rank 0 has not saved this step, and no step is there that it had loaded"):
        load_states(tmp_path, missing="rewind")


def test_rewinding_does_not_take_what_a_given_up_run_saved(tmp_path, caplog):
    """Its files are of another branch."""
    run(tmp_path, [1])
    run(tmp_path, [2, 3], batches=5)
    run(tmp_path, [4], states=lambda: load_states(tmp_path, step=1))
    (tmp_path / "step-4" / "rank-1.states").unlink()
    load_states(tmp_path, missing="rewind")
    assert "lacks rank 1: it goes on from its entry of step 1" in caplog.text


@pytest.mark.parametrize("settings", [{"num_workers": 2, "batches": 5}, {"batches": 9}])
def test_rewinding_takes_nothing_of_a_run_that_had_loaded_the_same_and_was_given_up(tmp_path, caplog, settings):
    """Which had come further, or had other workers: what it delivered after what was loaded would be lost."""
    run(tmp_path, [1])
    at_1 = dict(load_states(tmp_path))
    run(tmp_path, [2], states=lambda: load_states(tmp_path, step=1), **settings)
    run(tmp_path, [3], states=lambda: load_states(tmp_path, step=1))
    (tmp_path / "step-3" / "rank-1.states").unlink()
    states = dict(load_states(tmp_path, missing="rewind"))
    assert "lacks rank 1: it goes on from its entry of step 1; about" in caplog.text
    of_rank = {key for key in at_1 if not key.startswith("generation/") and key.split("/")[3] == "1"}
    assert {key: states[key] for key in of_rank} == {key: at_1[key] for key in of_rank}
    assert not {key for key in states if key.startswith("cursor/1/")}  # of the other workers' generation


def leg(directory, steps, batches, who, rank):
    """A rank of a process group, which goes on from step 1; not all of them come to save."""
    trainer = Rank(rank, 2, load_states(directory, step=1))
    for step in steps:
        trainer.take(batches)
        if rank in who:
            save_states(directory, trainer.states, step=step)


def test_a_step_in_which_a_file_of_a_given_up_run_is_left_is_refused(tmp_path, caplog):
    """Both runs had loaded the same, and the second one ended before all its ranks had saved."""
    states = tmp_path / "states"
    run(states, [1])
    for number, (steps, batches, who) in enumerate([([2], 9, (0, 1)), ([2, 3], 3, (0,))]):
        (tmp_path / str(number)).mkdir()
        run_on_ranks(tmp_path / str(number), partial(leg, states, steps, batches, who))
    words = r"rank 1 and rank 0 are not of one run\n.*: saved in the process group .*\n.*: saved in the process group"
    for found in ({"step": 2}, {"missing": "rewind"}, {}):
        with pytest.raises(StateError, match=words):
            load_states(states, **found)
    (states / "step-2" / "rank-1.states").unlink()
    assert load_states(states, missing="rewind").step == 3
    assert "rank 1: it goes on from its entry of step 1;" in caplog.text


def names_of_group(rank):
    """As the rank is told them: before the store is lost, and after."""
    first = group_name()
    dist.distributed_c10d._get_default_store = fail
    again = group_name()
    ranks._Named.group = lambda: None
    return first, again, group_name()


def fail():
    """As a store whose process has died."""
    raise RuntimeError("no store")


def test_ranks_that_have_met_know_a_name_of_their_group(tmp_path):
    """Each the same; it is asked for once, and where it cannot be had there is none."""
    told = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        told += run_on_ranks(tmp_path / str(number), names_of_group)
    assert told[0] == told[1] != told[2] == told[3]
    assert told[0][0] == told[0][1] is not None
    assert told[0][2] is group_name() is None


def test_rewinding_takes_nothing_of_a_step_of_which_nobody_knows_the_run(tmp_path, caplog):
    """No rank has saved both: to deliver again is better than to lose."""
    run(tmp_path, [1])
    run(tmp_path, [2], states=lambda: load_states(tmp_path, step=1), batches=9)
    (tmp_path / "step-2" / "rank-0.states").unlink()
    run(tmp_path, [3], states=lambda: load_states(tmp_path, step=1))
    (tmp_path / "step-3" / "rank-1.states").unlink()
    load_states(tmp_path, missing="rewind")
    assert "lacks rank 1: it goes on from its entry of step 1; about" in caplog.text


def test_rewinding_finds_what_was_loaded_where_rank_0_does_not_know_it(tmp_path, caplog):
    """In a plain dict of nobody else's entries it cannot tell what it had loaded; another rank can."""
    ranks = [Rank(rank, 3) for rank in range(3)]
    for rank, batches in zip(ranks, (1, 0, 0), strict=True):
        rank.take(batches)
        rank.save(tmp_path, 1)
    ranks = [Rank(rank, 3, through_json(dict(load_states(tmp_path)))) for rank in range(3)]
    for step in (2, 3):
        for rank in ranks:
            rank.take(4)
            rank.save(tmp_path, step)
    (tmp_path / "step-3" / "rank-1.states").unlink()
    load_states(tmp_path, missing="rewind")
    assert "lacks rank 1: it goes on from its entry of step 2; about 10 of its samples come again" in caplog.text


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_what_was_rewound_is_rewound_to(tmp_path, caplog, rank):
    """A run that had gone on from a step that lacked a rank lacks one, too: the same one or another."""
    run(tmp_path, [1, 2], size=3)
    (tmp_path / "step-2" / "rank-1.states").unlink()
    at_2 = dict(load_states(tmp_path, missing="rewind"))
    run(tmp_path, [3], size=3, states=lambda: load_states(tmp_path, missing="rewind", step=2))
    (tmp_path / "step-3" / f"rank-{rank}.states").unlink()
    caplog.clear()
    states = dict(load_states(tmp_path, missing="rewind"))
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        f"states: {tmp_path}/step-3 lacks rank {rank}: it goes on from its entry of step 2"
    ]
    of_rank = {key for key in at_2 if not key.startswith("generation/") and key.split("/")[3] == str(rank)}
    assert of_rank
    assert {key: states[key] for key in of_rank} == {key: at_2[key] for key in of_rank}


@pytest.mark.parametrize("step", ["9", 9.0, True])
def test_the_step_that_is_asked_for_is_an_int(tmp_path, step):
    """Text would name the folder."""
    with pytest.raises(ValueError, match="load_states: expected an int as step, got"):
        load_states(tmp_path, step=step)


def test_missing_is_one_of_two_words(tmp_path):
    """A misspelt one would pass over what is missing, or not."""
    with pytest.raises(ValueError, match="expected missing to be one of"):
        load_states(tmp_path, missing="ignore")


def save_until_killed(rank, directory, step, calls):
    """Save in a process of its own, which is killed when it has changed the disk that often."""
    pid, left = os.fork(), [calls]
    if pid:
        return os.waitpid(pid, 0)[1]

    def counted(function):
        def call(*arguments, **more):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **more)

        return call

    for owner, name in [(os, "fsync"), (Path, "mkdir"), (Path, "open"), (Path, "replace"), (Path, "iterdir")]:
        setattr(owner, name, counted(getattr(owner, name)))
    rank.save(directory, step)
    return os._exit(0)


def test_a_rank_that_is_killed_while_it_saves_leaves_the_last_step(tmp_path):
    """At each call that changes the disk: the step before stays loadable, until the new one is there in full."""
    rank, seen = Rank(0, 1), []
    for calls in range(40):
        folder = tmp_path / str(calls)
        rank.take(2)
        rank.save(folder, 1)
        rank.take(2)
        status = save_until_killed(rank, folder, 2, calls)
        seen.append(load_states(folder).step)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        rank.save(folder, 2)  # what the killed one left does not disturb
        assert dict(load_states(folder)) == rank.states
    assert status == 0
    assert len(seen) > 6
    assert seen == sorted(seen)
    assert {1, 2} == set(seen)
