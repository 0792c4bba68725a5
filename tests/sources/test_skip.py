"""Records that a run leaves out: found, counted, and changed from resume to resume."""

import json
import logging
from collections import Counter
from itertools import islice

import pytest

from streamdata import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    SeqDataset,
    SourceError,
    StateError,
    instantiate_from_yaml,
    merge_states,
    to_state,
)
from tests.mixing.test_resume import Packer, many_to_one_stream
from tests.shard_files import write_jsonl, write_tars
from tests.stores.tiny_stores import write
from tests.streams import Numbers, NumbersAhead, assert_exact_resume, delivered, resumed, through_json


def by_index(source, *indices):
    return [{"source": source, "index": index} for index in indices]


def numbers(skip=None, **options):
    return MergedDataset([Numbers("a", 30, **options), NumbersAhead("b", 20)], skip=skip, seed=1)


def values(dataset, count):
    return [(sample["__datasetname__"], sample["value"]) for sample in islice(dataset, count)]


@pytest.mark.parametrize("lanes", [(1, 0), (3, 2), (5, 5)])
def test_an_epoch_is_all_but_what_is_left_out(lanes):
    """By index, whichever lane it would be in, and where nothing is left of a lane's share."""
    skip = [*by_index("a", 3, 29, 0), *by_index("b", *range(0, 20, 2)), *by_index("a", 3)]
    make = lambda: MergedDataset(  # noqa: E731
        [Numbers("a", 30), NumbersAhead("b", 20)], skip=skip, cyclic=False, stop="all_exhausted"
    )
    expected = {("a", n, None) for n in range(30) if n not in (3, 29, 0)} | {("b", n, None) for n in range(1, 20, 2)}
    assert delivered(make, *lanes) == Counter(expected)


@pytest.mark.parametrize(
    ("make", "write_shards"), [(JsonlIterableDataset, write_jsonl), (MetaDistributedWebDataset, write_tars)]
)
def test_records_of_shards_are_named_by_url_and_key(tmp_path, make, write_shards):
    """As a sample has them, from a file; in a mixture below the top, the path names the source."""
    source = make(write_shards(tmp_path / "shards", [9, 4, 7]), name="s", percent=1)
    everything = list(MergedDataset([source], cyclic=False))
    out = [{"source": "in.s", "url": s["__url__"], "key": s["__key__"]} for s in everything[3:8]]
    (tmp_path / "skip.jsonl").write_text("\n\n".join(map(json.dumps, out)) + "\n")
    inner = MergedDataset([source], name="in", percent=1, cyclic=False)
    samples = list(MergedDataset([inner], skip=tmp_path / "skip.jsonl", cyclic=False))
    keys = [(sample["__url__"], sample["__key__"]) for sample in samples]
    assert sorted(keys) == sorted((s["__url__"], s["__key__"]) for s in everything[:3] + everything[8:])


def test_what_is_left_out_is_counted():
    """In each epoch anew; a source of which nothing is left out says nothing."""
    skip = by_index("a", 1, 2)
    states = to_state(list(islice(numbers(skip), 2 * 28 + 56)))
    assert states["cursor/0/0/0/0/a"]["skipped"] == 4
    assert "skipped" not in states["cursor/0/0/0/0/b"]


FUNCTIONS = {
    "none": {},
    "per record": {"single_process_fn": lambda record: [{**record, "part": part} for part in range(3)]},
    "stream": {"process_fn": Packer()},
    "both": {"process_fn": Packer(), "single_process_fn": lambda record: [dict(record), dict(record)]},
}


@pytest.mark.each_value
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_with_the_same_list_is_exact(function, num_workers):
    """From every step; what was left out of a burst is left out of its replay."""
    skip = by_index("a", *range(0, 30, 4), *range(1, 30, 5))
    assert_exact_resume(lambda: numbers(skip, **FUNCTIONS[function]), steps=40, num_workers=num_workers)


def test_a_yield_function_resumes_exactly_with_the_same_list():
    """Though its open burst is drawn again."""
    skip = by_index("a", *range(0, 30, 4))
    sources = lambda: [Numbers("a", 30), Numbers("b", 20)]  # noqa: E731
    assert_exact_resume(lambda: MergedDataset(sources(), skip=skip, customized_yield_fn=many_to_one_stream), steps=30)


def rows_of(samples):
    return [value for sample in samples for value in sample["row"]]


LISTS = [[], by_index("a", *range(0, 60, 3)), by_index("a", *range(0, 60, 2)), by_index("a", 59), None]


def test_a_share_of_which_all_is_left_out_in_some_epoch_is_passed_over():
    """Two records a lane and epoch, of which often both are to be skipped: by chance, so the next epoch has others."""
    for dp_rank in range(4):
        dataset = MergedDataset([Numbers("a", 8)], skip=by_index("a", *range(6)))
        dataset.set_data_parallel(4, dp_rank)
        assert {value for _, value in values(dataset, 100)} == {6, 7}


@pytest.mark.parametrize(
    ("before", "after"),
    [(before, after) for before in range(len(LISTS)) for after in range(len(LISTS)) if before != after],
)
def test_another_list_applies_from_the_next_burst_on(before, after):
    """What a packer had begun is finished as it was: no token twice, and none lost but of what is to be left out."""

    def make(skip):
        return MergedDataset([Numbers("a", 60, process_fn=Packer())], skip=skip, cyclic=False)

    out = [{entry["index"] for entry in LISTS[number] or ()} for number in (before, after)]
    samples = list(make(LISTS[before]))
    for step in range(1 + (before + after) % 4, len(samples), 4):  # the others with other lists
        states = through_json(to_state(samples[:step]))
        rest = list(resumed(lambda: make(LISTS[after]), states))
        counts = Counter(rows_of([*samples[:step], *rest]))
        assert all(count == value % 5 + 1 for value, count in counts.items())
        assert set(range(60)) - set(counts) <= out[0] | out[1]
        assert not set(counts) & out[0] & out[1]
        assert not set(rows_of(rest)[12:]) & out[1]


@pytest.mark.each_value
@pytest.mark.parametrize("after", range(len(LISTS)))
@pytest.mark.parametrize("cuts", [(1, 4), (5, 2), (8, 1)])
def test_another_list_and_another_topology_at_once(after, cuts):
    """The lane that goes on with an open burst feeds it what it was fed; no token comes twice, over two changes."""

    def make(skip, dp_size=1, dp_rank=0):
        dataset = MergedDataset([Numbers("a", 60, process_fn=Packer())], skip=skip, cyclic=False)
        dataset.set_data_parallel(dp_size, dp_rank)
        return dataset

    states, got = {}, []
    for dp_size, skip, steps in ((2, LISTS[1], cuts[0]), (3, LISTS[after], cuts[1]), (1, LISTS[2], 99)):
        parts = []
        for dp_rank in range(dp_size):
            dataset, own = make(skip, dp_size, dp_rank), dict(through_json(states))
            dataset.set_dataloader_states(through_json(states))
            for sample in islice(dataset, steps):
                got.append(sample)
                own.update(to_state(sample))
            parts.append(own)
        states = merge_states(*parts)
    out = [{entry["index"] for entry in LISTS[number] or ()} for number in (1, after, 2)]
    counts = Counter(rows_of(got))
    assert all(count == value % 5 + 1 for value, count in counts.items())
    assert set(range(60)) - set(counts) <= set.union(*out)
    assert not set(counts) & set.intersection(*out)


def rows_of_forty(records):
    """As many outputs as records: nothing before there are 40 of them."""
    held = []
    for record in records:
        held.append(record["value"])
        if len(held) == 40:
            yield from ({"row": [value]} for value in held)
            held = []
    yield from ({"row": [value]} for value in held)


def many_left_out(skip, dp_size=1, dp_rank=0):
    dataset = MergedDataset([Numbers("a", 3000, process_fn=rows_of_forty)], skip=skip, cyclic=False)
    dataset.set_data_parallel(dp_size, dp_rank)
    return dataset


MOST = by_index("a", *(n for n in range(3000) if n % 10))


def test_an_entry_stays_small_however_many_are_left_out():
    """Some 360 records lie between those of a burst; a resume with the same list is exact all the same."""
    samples = list(islice(many_left_out(MOST), 100))
    for step in (1, 39, 41, 99):
        states = through_json(to_state(samples[:step]))
        assert len(json.dumps({"cursor/0/0/0/0/": states["cursor/0/0/0/0/a"]})) <= 300
        rest = list(islice(resumed(lambda: many_left_out(MOST), states), 100 - step))
        assert rows_of(rest) == rows_of(samples[step:])
        assert to_state(rest) == {key: value for key, value in to_state(samples).items() if key in to_state(rest)}


def test_what_the_states_cannot_tell_of_another_list_is_an_error():
    """Not a burst of other records; nor one that another topology takes over."""
    states = through_json(to_state(list(islice(many_left_out(MOST), 3))))
    for skip, dp_size in ((MOST[1:], 1), (None, 1), (MOST[1:], 2)):
        message = r"source 'a': expected the `skip` with which the states were written(.|\n)*Resume with the former"
        datasets = [many_left_out(skip, dp_size, dp_rank) for dp_rank in range(dp_size)]
        for dataset in datasets:
            dataset.set_dataloader_states(states)
        with pytest.raises(StateError, match=message):
            list(map(list, datasets))


def test_a_burst_of_which_much_was_left_out_is_dealt_to_another_topology():
    """With the same list nothing is lost, and nothing comes twice."""
    states = to_state(got := list(islice(many_left_out(MOST), 50)))
    for dp_rank in range(3):
        dataset = many_left_out(MOST, 3, dp_rank)
        dataset.set_dataloader_states(through_json(states))
        got += list(dataset)
    assert sorted(rows_of(got)) == list(range(0, 3000, 10))


def test_a_second_list_may_leave_out_more_than_the_states_tell():
    """What was left out under the first one is told, the rest follows from the second one."""
    few = by_index("a", *range(0, 3000, 70))
    make = lambda skip: MergedDataset([Numbers("a", 3000, process_fn=Packer())], skip=skip, cyclic=False)  # noqa: E731
    for begun in (1, 2, 3, 8):
        samples = list(islice(make(few), begun))
        rest = list(islice(resumed(lambda: make(MOST), to_state(samples)), 20))
        for step in (1, 2, 5, 9):
            states = to_state(samples) | to_state(rest[:step])
            assert rows_of(islice(resumed(lambda: make(MOST), states), 20 - step)) == rows_of(rest[step:])


def test_a_record_that_was_begun_is_finished():
    """The rest of its samples is delivered, though it is to be left out by now; the next time it is."""

    def make(skip):
        return MergedDataset([Numbers("a", 5, **FUNCTIONS["per record"])], skip=skip)

    samples = list(islice(make(None), 40))
    states = to_state(samples[:1])
    begun = samples[0]["value"]
    parts = [
        (sample["value"], sample["part"]) for sample in islice(resumed(lambda: make(by_index("a", begun)), states), 30)
    ]
    assert parts[:2] == [(begun, 1), (begun, 2)]
    assert begun not in {value for value, _ in parts[2:]}


def test_another_list_under_a_yield_function_draws_its_burst_anew(caplog):
    """None is lost, those of one burst may come twice, and a line says so."""

    def make(skip):
        sources = [Numbers("a", 40), Numbers("b", 40)]
        return MergedDataset(sources, skip=skip, customized_yield_fn=pairs, cyclic=False, stop="all_exhausted")

    samples = list(make(None))
    for step in (1, 2, 5, 8):
        with caplog.at_level(logging.WARNING, "streamdata"):
            rest = list(resumed(lambda: make(by_index("a", *range(0, 40, 3))), to_state(samples[:step])))
        counts = Counter((name, value) for sample in [*samples[:step], *rest] for name, value in sample["all"])
        assert sum(counts.values()) - len(counts) <= 2
        assert {("a", n) for n in range(40) if n % 3} | {("b", n) for n in range(40)} <= set(counts)
        assert "`skip` are others" in caplog.text


def pairs(samples):
    """Two samples in one, and the single one at the end."""
    held = []
    for sample in samples:
        held.append((sample["__datasetname__"], sample["value"]))
        if len(held) == 2:
            yield {"all": held}
            held = []
    if held:
        yield {"all": held}


def test_a_source_of_which_nothing_is_left_is_an_error():
    """An endless stream would look for a record without end."""
    with pytest.raises(SourceError, match=r"source 'a'.*gave no sample.*1020 records left out by `skip`"):
        list(islice(numbers(by_index("a", *range(30))), 100))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"source": "c", "index": 0}, "entry 1: expected the path of a source with records, got 'c'"),
        ({"source": "s", "key": "0"}, r"expected the fields 'source' and 'index', or .* got \['key', 'source'\]"),
        ({"source": "a", "index": 0, "why": 1}, r"got \['index', 'source', 'why'\]"),
        (3, "got 3"),
        ({"source": "a", "index": 30}, "entry 1: source 'a': expected an index from 0 to 29, got 30"),
        ({"source": "a", "index": -1}, "got -1"),
        ({"source": "a", "index": True}, "got True"),
        ({"source": "a", "url": "x", "key": "0"}, "source 'a': expected an index, got a url and a key"),
        ({"source": "s", "index": 0}, "source 's': expected url and key, got an index"),
        ({"source": "s", "url": "x", "key": "0"}, "expected the url of one of its 1 shards, got 'x'"),
        ({"source": "s", "url": "URL", "key": 0}, "expected a key as a sample's __key__, a str, got 0"),
        ({"source": "s", "url": "URL", "key": "3"}, r"'s': expected the number of .* lines 0 to 2 of .* got '3'"),
        ({"source": "s", "url": "URL", "key": "01"}, "got '01'"),
        ({"source": "s", "url": "URL", "key": "x"}, "got 'x'"),
    ],
)
def test_an_entry_that_names_no_record_is_refused(tmp_path, entry, message):
    """When the mixture is built, with its number."""
    shards = JsonlIterableDataset(write_jsonl(tmp_path, [3]), name="s", percent=1)
    if isinstance(entry, dict) and entry.get("url") == "URL":
        entry["url"] = shards.source.shards.urls[0]
    with pytest.raises(ValueError, match=message):
        MergedDataset([Numbers("a", 30), shards], skip=[{"source": "a", "index": 1}, entry])


def test_lines_are_counted_with_blank_ones(tmp_path):
    """As keys are; an empty shard has none."""
    (tmp_path / "a.jsonl").write_text('\n{"n": 1}\n\n\n{"n": 2}\n\n')
    (tmp_path / "b.jsonl").write_text("\n")
    source = JsonlIterableDataset(str(tmp_path), name="s", percent=1)
    first, second = source.source.shards.urls
    skipping = MergedDataset([source], skip=[{"source": "s", "url": first, "key": "4"}], cyclic=False)
    assert [sample["__key__"] for sample in skipping] == ["1"]
    for url, key, last in ((first, "5", 4), (second, "0", -1)):
        with pytest.raises(ValueError, match=f"lines 0 to {last} of"):
            MergedDataset([source], skip=[{"source": "s", "url": url, "key": key}])


@pytest.mark.parametrize("skip", [5, {"source": "a", "index": 1}])
def test_what_is_no_list_is_refused(skip):
    """Also a single record, which would be taken for a list of its fields."""
    with pytest.raises(ValueError, match="skip: expected a list of records, or the path of a JSONL file, got"):
        MergedDataset([Numbers("a", 30)], skip=skip)


def test_a_line_of_a_file_is_named(tmp_path):
    """By its number; a file that is not there is an error, too."""
    path = tmp_path / "skip.jsonl"
    path.write_text('{"source": "a", "index": 1}\n\n{"source": "a", \n')
    with pytest.raises(ValueError, match=r"skip\.jsonl:3: expected a JSON object, got"):
        numbers(str(path))
    with pytest.raises(FileNotFoundError):
        numbers(str(tmp_path / "missing.jsonl"))


def test_the_top_alone_has_a_list():
    """The paths in it begin there."""
    inner = MergedDataset([Numbers("a", 30)], skip=by_index("a", 1), name="in", percent=1)
    with pytest.raises(ValueError, match="'in': expected no `skip` in a mixture below another one"):
        MergedDataset([inner])


def test_records_of_a_packed_store_are_not_left_out(tmp_path):
    """A window holds parts of many documents."""
    store = SeqDataset(write("bin", tmp_path / "store"), window_size=2, name="tokens", percent=1)
    with pytest.raises(ValueError, match=r"'tokens': expected a source of single records(.|\n)*streamdata prepare"):
        MergedDataset([store], skip=by_index("tokens", 0))


def test_a_recipe_may_have_a_list_or_a_file(tmp_path):
    """Under the params of the top."""
    write_jsonl(tmp_path / "shards", [5])
    url = tmp_path / "shards" / "00000.jsonl"
    (tmp_path / "skip.jsonl").write_text(json.dumps({"source": "s", "url": str(url), "key": "2"}))
    source = f"{{target: streamdata.JsonlIterableDataset, params: {{path: {url}, name: s, percent: 1}}}}"
    for skip in (f"[{{source: s, url: {url}, key: '2'}}]", tmp_path / "skip.jsonl"):
        recipe = tmp_path / "recipe.yaml"
        params = f"{{cyclic: false, skip: {skip}, datasets: [{source}]}}"
        recipe.write_text(f"target: streamdata.MergedDataset\nparams: {params}\n")
        assert {sample["__key__"] for sample in instantiate_from_yaml(recipe)} == {"0", "1", "3", "4"}


def test_the_list_is_no_part_of_the_order():
    """What is left of a source comes in the order that it has without a list."""
    out = by_index("a", *range(15))
    everything, samples = list(islice(numbers(), 120)), list(islice(numbers(out), 9))
    states = to_state(samples)
    for skip in (None, out, by_index("a", 20, 21)):
        rest = values(resumed(lambda skip=skip: numbers(skip), states), 40)
        left = {entry["index"] for entry in skip or ()}
        drawn = [value for name, value in values(samples, 9) if name == "a"]
        order = [sample["value"] for sample in everything if sample["__datasetname__"] == "a"]
        following = [value for value in order[order.index(drawn[-1]) + 1 :] if value not in left]
        got = [value for name, value in rest if name == "a"]
        assert got[:10] == following[:10]


@pytest.mark.parametrize("code", ["x", "1 y", "~1", "~1~2~3", "~x~2"])
def test_a_damaged_list_of_what_was_left_out_is_refused(code):
    """It must not decide what is left out; the source is named."""
    states = through_json(to_state(list(islice(many_left_out(MOST), 3))))
    (key,) = (key for key, value in states.items() if isinstance(value, dict) and value.get("left_out"))
    with pytest.raises(StateError, match=r"states with 'left_out' .*, which no run writes"):
        list(islice(resumed(lambda: many_left_out(MOST), {**states, key: {**states[key], "left_out": code}}), 1))
