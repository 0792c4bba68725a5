"""Steps that ranks save and load: all of it or an error that says what is missing, torn or of another run."""

import gzip
import json
import logging
import os
import re
import shutil
import signal
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from weakref import WeakSet

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

from streamdata import MergedDataset, StateError, load_states, merge_states, save_states, to_state
from streamdata.states import saving
from streamdata.states.headers import digest_of, read_deal
from streamdata.states.loading import named_ranks, read_states
from streamdata.states.saving import group_name
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


KEEP = [lambda states: states, dict, lambda states: through_json(dict(states))]
"""What a trainer goes on with: the mapping that was loaded, a plain dict of it, or one that it wrote and read."""


def test_what_ranks_saved_is_loaded_as_one(tmp_path):
    """As merge_states would join it: plain JSON, a file for each rank, the newest step as a number."""
    parts = run(tmp_path, [9, 10])
    states = load_states(tmp_path)
    assert files(tmp_path) == [f"step-{step}/rank-{rank}.states" for step in (10, 9) for rank in (0, 1)]
    assert (states.step, dict(states)) == (10, merge_states(*parts))
    assert json.loads(json.dumps(dict(states))) == dict(states)
    assert load_states(tmp_path, step=9).step == 9


@pytest.mark.parametrize("keep", KEEP)
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
    assert f"passed over: {tmp_path}/step-12: this step lacks every rank" in caplog.text
    assert f"passed over: {tmp_path}/step-11: this step lacks rank 1 of 3" in caplog.text
    with pytest.raises(StateError, match="lacks rank 1 of 3"):
        load_states(tmp_path, step=11)
    for step in (9, 10):
        (tmp_path / f"step-{step}" / "rank-2.states").unlink()
    with pytest.raises(
        StateError, match=r"step-11: this step lacks rank 1 of 3\n.*step-10: this step lacks rank 2 of 3"
    ):
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
    # Bytes 4 to 9 of gzip's header say when and where it was written: nothing of its content.
    for position in [*range(4), *range(10, len(content), 7)]:
        path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        with pytest.raises(StateError, match=re.escape(str(path))):
            load_states(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file["entries"].update({"a": 1}),
        lambda file: file["entries"].update({"worker/0/0": 1}),
        lambda file: file["columns"].update(draws=[5]),
        lambda file: file["columns"].update(of_a_later_version=file["columns"]["draws"]),
        lambda file: file.pop("paths"),
        lambda file: file.update(rows=-1),
        lambda file: file.update(rare="{"),
        lambda file: file["headers"].update({"generation/0": "{}"}),
        lambda file: file["headers"].update({"generation/x": file["headers"]["generation/0"]}),
        lambda file: file.pop("streamdata_states"),
        lambda file: file.update(size=2**31),
    ],
)
@pytest.mark.parametrize("load", [load_states, lambda path: read_states([path / "step-1" / "rank-0.states"])])
def test_what_save_states_does_not_write_is_refused(tmp_path, damage, load):
    """Though its sum is right: what another program wrote."""
    run(tmp_path, [1])
    path = tmp_path / "step-1" / "rank-0.states"
    file = json.loads(gzip.decompress(path.read_bytes()))
    damage(file)
    path.write_bytes(gzip.compress(json.dumps(file).encode()))
    with pytest.raises(StateError, match=r"rank-0\.states"):
        load(tmp_path)


def test_a_file_of_another_version_is_not_to_be_deleted(tmp_path):
    """It can be read with that version."""
    run(tmp_path, [1])
    path = tmp_path / "step-1" / "rank-0.states"
    file = json.loads(gzip.decompress(path.read_bytes())) | {"streamdata_states": 99}
    path.write_bytes(gzip.compress(json.dumps(file).encode()))
    with pytest.raises(StateError, match=r"rank-0\.states: written by another version of streamdata\n  Read it with"):
        load_states(tmp_path)


def test_a_file_of_another_step_rank_or_size_is_refused(tmp_path):
    """By what is in it: its name does not count. It is not passed over either."""
    run(tmp_path / "two", [1, 2])
    run(tmp_path / "three", [2], size=3)
    for source, message in [
        (tmp_path / "two" / "step-1" / "rank-1.states", "expected rank 1 at step 2, got a file of rank 1 at step 1"),
        (tmp_path / "two" / "step-2" / "rank-0.states", "expected rank 1 at step 2, got a file of rank 0 at step 2"),
        (tmp_path / "three" / "step-2" / "rank-1.states", "not of one run: they differ in size: 3, not 2"),
    ]:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "two", copy)
        shutil.copy(source, copy / "step-2" / "rank-1.states")
        with pytest.raises(StateError, match=message) as raised:
            load_states(copy)
        assert "rank-1.states" in str(raised.value)


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("change", [{"size": 3}, {"num_workers": 2}])
def test_a_file_of_another_branch_is_refused(tmp_path, keep, change):
    """One rank had gone on under another size from another step than the others: also from a dict of it."""
    run(tmp_path, [1, 2])
    for number in range(2):
        rank = Rank(number, **{"size": 2, "states": keep(load_states(tmp_path, step=2 - number)), **change})
        rank.take(3)
        rank.save(tmp_path, 3)
    with pytest.raises(
        StateError, match=r"rank-1.states and .*rank-0.states are not of one run: they differ in generation"
    ):
        load_states(tmp_path, step=3)


@pytest.mark.parametrize("change", [{"size": 3}, {"num_workers": 2}])
def test_a_rank_that_had_begun_without_states_is_no_idle_one(tmp_path, change):
    """The others had gone on under another size: what it delivered would come again."""
    run(tmp_path, [1])
    for number in range(3 if "size" in change else 2):
        states = {} if number == 1 else load_states(tmp_path, step=1)
        rank = Rank(number, **{"size": 2, "states": states, **change})
        rank.take(3)
        rank.save(tmp_path, 3)
    with pytest.raises(StateError, match=r"not of one run"):
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
    ("change", "message"), [({"weight": 5}, "weights.a: 5.0"), ({"num_workers": 3}, "num_workers: 3")]
)
def test_ranks_that_differ_are_refused(tmp_path, change, message):
    """In their recipe or in their number of workers: both files are named, and what differs."""
    settings = [{}, change]
    for number, changed in enumerate(settings):
        num_workers = changed.pop("num_workers", 2)
        rank = Rank(number, 2, num_workers=num_workers, dataset=make(**changed))
        rank.take(4)
        rank.save(tmp_path, 1)
    with pytest.raises(StateError, match=f"rank-1.states and .*rank-0.states are not of one run: .*{message}"):
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


def go_on(directory, idle, keep=dict, **change):
    """All ranks load step 1, those that are not idle deliver, and all save step 2; what these say together."""
    ranks = [Rank(number, states=keep(load_states(directory, step=1)), **change) for number in range(change["size"])]
    for rank in ranks:
        rank.take(0 if rank.rank in idle else 3)
        rank.save(directory, 2)
    delivered = [dict(rank.states) for rank in ranks if rank.rank not in idle]
    shutil.rmtree(directory / "step-1")
    return merge_states(*delivered) | {f"idle/1/{rank}": True for rank in idle} if delivered else None


def test_what_each_entry_says_comes_back(tmp_path):
    """Of samples that only filled a rank up, or were left out, too."""
    states = {}
    for sample in islice(iter(MergedDataset([Numbers("a", 50)])), 5):
        states |= to_state([sample])
    states["uneven/0/0/0"] = {"batches": 2, "padded/a": 8}
    save_states(tmp_path, states, step=5, rank=0, size=1)
    assert dict(load_states(tmp_path)) == through_json(states)


@pytest.mark.parametrize("idle", [(), (0,), (1,), (2,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keep", KEEP)
def test_a_step_needs_no_other_folder_after_a_change_of_size(tmp_path, keep, idle):
    """What the old ranks had delivered is in the new step's folder once, whoever has delivered nothing since."""
    run(tmp_path, [1])
    old = dict(load_states(tmp_path))
    want = go_on(tmp_path, idle, keep, size=3)
    assert dict(load_states(tmp_path)) == (want or old)
    folder = tmp_path / "step-2"
    assert len(list(folder.glob("deal-*.json.gz"))) == (len(idle) < 3)
    if not idle:
        sizes = [path.stat().st_size for path in sorted(folder.glob("rank-*"))]
        assert max(sizes) - min(sizes) < 40


@pytest.mark.parametrize("idle", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("keep", KEEP)
def test_other_workers_are_a_change_of_size(tmp_path, keep, idle):
    """The number of ranks stays; a rank that delivers nothing saves what it had delivered before."""
    run(tmp_path, [1])
    old = dict(load_states(tmp_path))
    want = go_on(tmp_path, idle, keep, size=2, num_workers=2)
    assert dict(load_states(tmp_path)) == (want or old)


def save_a_dict(directory, states, rank):
    """A rank of three that was sent a dict and has delivered nothing: it has loaded none itself."""
    Rank(rank, 3, states).save(directory, 2)


def test_a_dict_that_was_only_sent_is_saved(tmp_path):
    """Through JSON, in processes that have seen no step: what is loaded is what was sent, and no less."""
    run(tmp_path, [1])
    want = dict(load_states(tmp_path))
    for rank in range(3):
        apart(save_a_dict, tmp_path, through_json(want), rank)
    assert files(tmp_path / "step-2") == [f"rank-{rank}.states" for rank in range(3)]
    shutil.rmtree(tmp_path / "step-1")
    assert dict(load_states(tmp_path)) == want


def deal_of(folder):
    """The only file of its kind there."""
    (path,) = folder.glob("deal-*")
    return path


@pytest.fixture
def resized(tmp_path):
    """Step 2 of three ranks that had gone on from what two saved."""
    run(tmp_path, [1])
    go_on(tmp_path, (), size=3)
    return tmp_path / "step-2"


@pytest.mark.parametrize("writer", [0, 1, 2])
def test_what_was_before_is_written_once_the_same_by_each_rank(tmp_path, writer):
    """Whichever rank has it first: named by its digest, and not written again."""
    run(tmp_path, [1])
    ranks = [Rank(number, 3, load_states(tmp_path, step=1)) for number in range(3)]
    for rank in ranks:
        rank.take(2)
        rank.save(tmp_path / f"by-{rank.rank}", 2)
    contents = {deal_of(tmp_path / f"by-{rank.rank}" / "step-2").read_bytes() for rank in ranks}
    assert len(contents) == 1
    ranks[writer].save(tmp_path / "all", 2)
    path = deal_of(tmp_path / "all" / "step-2")
    os.utime(path, (1, 1))
    for rank in ranks:
        rank.save(tmp_path / "all", 2)
    assert (deal_of(path.parent), path.stat().st_mtime) == (path, 1)
    deal = load_states(tmp_path / "all")["deal/1"]
    assert path.name == f"deal-{digest_of(read_deal(deal).text)}.json.gz"


READS = [
    lambda folder: load_states(folder.parent),
    lambda folder: read_states([folder]),
    lambda folder: read_states([folder / "rank-1.states"]),
]


@pytest.mark.parametrize("read", READS)
def test_a_step_whose_deal_is_missing_is_refused(resized, read):
    """By the name of the file; nothing else says what was delivered before."""
    path = deal_of(resized)
    path.unlink()
    with pytest.raises(StateError, match=re.escape(path.name)):
        read(resized)


@pytest.mark.parametrize("read", READS)
def test_a_torn_deal_is_named_whatever_its_length(resized, read):
    """Every prefix, any byte, and what follows its end."""
    path = deal_of(resized)
    content = path.read_bytes()
    torn = [content[:length] for length in range(0, len(content), 17)] + [content[:-1], content + b"x"]
    # Bytes 4 to 9 of gzip's header say when and where it was written: nothing of its content.
    bytes_of_it = [*range(4), *range(10, len(content), 13)]
    torn += [content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] for at in bytes_of_it]
    for damaged in torn:
        path.write_bytes(damaged)
        with pytest.raises(StateError, match=re.escape(str(path))):
            read(resized)


@pytest.mark.parametrize("read", READS)
def test_a_deal_of_another_digest_is_refused(resized, read):
    """Though it is whole: what another run had come to."""
    path = deal_of(resized)
    other = json.loads(gzip.decompress(path.read_bytes()))
    other["step"] += 1
    path.write_bytes(gzip.compress(json.dumps(other).encode()))
    with pytest.raises(StateError, match=f"{re.escape(str(path))}: (.|\n)*not the one of its name"):
        read(resized)


def test_states_that_lack_what_was_before_are_not_saved(tmp_path):
    """As of a trainer that missed the first batch after a resume."""
    run(tmp_path, [1])
    rank = Rank(0, 1, load_states(tmp_path))
    rank.take(2)
    without = {key: value for key, value in rank.states.items() if key != "deal/1"}
    with pytest.raises(StateError, match="'deal/1' is missing"):
        save_states(tmp_path, without, step=2)
    assert not (tmp_path / "step-2").exists()


@pytest.mark.parametrize("damage", [lambda deal: 7, lambda deal: {}, lambda deal: {**deal, "step": 99}])
def test_states_with_another_deal_than_their_own_are_not_saved(tmp_path, damage):
    """The step could not be loaded: its ranks would name a file that is not there."""
    run(tmp_path, [1])
    rank = Rank(0, 1, dict(load_states(tmp_path)))
    rank.take(2)
    states = rank.states | {"deal/1": damage(rank.states["deal/1"])}
    with pytest.raises(StateError, match="deal/…"):
        save_states(tmp_path, states, step=2)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_states_of_an_earlier_format_are_neither_saved_nor_loaded(tmp_path, number):
    """The message says what can still be done with them."""
    rank = Rank(0, 1)
    rank.take(2)
    header = {**rank.states["generation/0"], "format": number}
    remedy = f"expected format 4, got {number}: start anew, or .* version of streamdata that wrote them"
    with pytest.raises(StateError, match=remedy):
        save_states(tmp_path, rank.states | {"generation/0": header}, step=1)
    save_states(tmp_path, rank.states, step=1)
    path = tmp_path / "step-1" / "rank-0.states"
    file = json.loads(gzip.decompress(path.read_bytes())) | {"headers": {"generation/0": json.dumps(header)}}
    path.write_bytes(gzip.compress(json.dumps(file).encode()))
    with pytest.raises(StateError, match=f"rank-0.states: .*{remedy}"):
        load_states(tmp_path)


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
        for rank in from_kept:  # the entries of all sizes
            kept.update(rank.states)
        sizes.append(len(load_states(tmp_path)))
    assert sizes[-1] < len(kept) / 4
    assert max(sizes[5:]) <= max(sizes[:5])


def test_a_smaller_run_replaces_what_a_larger_one_had_saved_at_the_step(tmp_path):
    """It had come further before it was given up; its files must not make the step one of two runs."""
    run(tmp_path, [5], size=4)
    run(tmp_path, [5], size=2)
    assert load_states(tmp_path).step == 5
    assert files(tmp_path) == ["step-5/rank-0.states", "step-5/rank-1.states"]


@pytest.mark.parametrize("keep", KEEP)
def test_more_ranks_go_on_from_what_a_single_one_saved(tmp_path, keep):
    """Whose states are all there are: a rank that has delivered nothing since saves, and goes on where it would."""
    run(tmp_path, [1], size=1)
    ranks = [Rank(rank, 3, keep(load_states(tmp_path, step=1))) for rank in range(3)]
    for step in (2, 3):
        for rank in ranks:
            rank.take(0 if rank.rank == 1 else 4)
            rank.save(tmp_path, step)
    shutil.rmtree(tmp_path / "step-1")
    for step in (2, 3):
        states = dict(load_states(tmp_path, step=step))
        assert [key for key in states if key.startswith("idle/")] == ["idle/1/1"]
    for rank in ranks:
        assert Rank(rank.rank, 3, keep(load_states(tmp_path))).take(5) == rank.take(5)


def leg(directory, steps, batches, who, rank):
    """A rank of a process group, which goes on from step 1; not all of them come to save."""
    trainer = Rank(rank, 2, load_states(directory, step=1))
    for step in steps:
        trainer.take(batches)
        if rank in who:
            save_states(directory, trainer.states, step=step)


def test_a_step_in_which_a_file_of_a_given_up_run_is_left_is_refused(tmp_path):
    """Both runs had loaded the same, and the second one ended before all its ranks had saved."""
    states = tmp_path / "states"
    run(states, [1])
    for number, (steps, batches, who) in enumerate([([2], 9, (0, 1)), ([2, 3], 3, (0,))]):
        (tmp_path / str(number)).mkdir()
        run_on_ranks(tmp_path / str(number), partial(leg, states, steps, batches, who))
    words = r"rank-1.states and .*rank-0.states are not of one run: they differ in group: '\w+', not '\w+'"
    for found in ({"step": 2}, {}):
        with pytest.raises(StateError, match=words):
            load_states(states, **found)
    (states / "step-2" / "rank-1.states").unlink()
    assert load_states(states).step == 1


def names_of_group(rank):
    """As the rank is told them: before the store is lost, and after."""
    first = group_name()
    dist.distributed_c10d._get_default_store = fail
    again = group_name()
    saving._names.clear()
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


@pytest.mark.parametrize("step", ["9", 9.0, True])
def test_the_step_that_is_asked_for_is_an_int(tmp_path, step):
    """Text would name the folder."""
    with pytest.raises(ValueError, match="load_states: expected an int as step, got"):
        load_states(tmp_path, step=step)


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


@pytest.fixture
def unasked(monkeypatch):
    """A process in which nobody has called `to_state`, and no dataset has given anything."""
    monkeypatch.setattr(saving, "is_asked", Event())
    monkeypatch.setattr(saving, "watched", datasets := WeakSet())
    return datasets


def given(unasked):
    """A dataset of which a loop has had two batches."""
    unasked.add(dataset := make())
    loader = DataLoader(dataset, 2, num_workers=1, collate_fn=len)
    assert list(islice(loader, 2)) == [2, 2]
    return dataset


def test_empty_states_of_what_was_delivered_are_refused(tmp_path, unasked):
    """Whoever forgets `to_state` would begin again at sample 0; before step 1 nothing is forgotten."""
    dataset = given(unasked)
    save_states(tmp_path, {}, step=0)
    with pytest.raises(StateError, match=r"states of what was delivered in 5 steps, got none(.|\n)*to_state"):
        save_states(tmp_path, {}, step=5)
    saving.is_asked.set()
    save_states(tmp_path, {}, step=5)
    assert dataset.is_to_be_saved()


def test_evaluations_and_what_gave_nothing_need_no_states(tmp_path, unasked):
    """Their batches are not trained on."""
    finite = make().finite()
    held_out = MergedDataset([Numbers("a", 40, holdout=0.5, part="valid")])
    for dataset in (finite, held_out):
        unasked.add(dataset)
        next(iter(dataset))
    unasked.add(make())
    save_states(tmp_path, {}, step=5)


def test_a_step_without_an_entry_of_any_rank_is_refused(tmp_path, unasked):
    """Step 0 may be empty."""
    for step in (0, 5):
        save_states(tmp_path, {}, step=step)
    assert dict(load_states(tmp_path, step=0)) == {}
    with pytest.raises(StateError, match="step-5: expected states of what was delivered, got none of any rank"):
        load_states(tmp_path)


@pytest.mark.parametrize(("count", "end"), [(2, "rank 1"), (30, "rank 29"), (31, "rank 29 and 1 more")])
def test_thirty_ranks_are_named_at_most(count, end):
    """Of a thousand that lack a step a message has the first ones, and how many more."""
    assert named_ranks(range(count)).endswith(f", {end}")
