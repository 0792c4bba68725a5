"""What is held out of a source, and the rest: a partition by identities that neither seed nor place changes."""

import gzip
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata import (
    ImageJsonlDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    RLHFDataset,
    SeqDataset,
    SFTChatDataset,
    SourceError,
    StateError,
    instantiate_from_yaml,
    mixed_collate,
    named,
    to_state,
)
from streamdata.recipe.check import check_recipe
from streamdata.sources.order.blocks import MAP_STYLE_SEED, Part, shard_seeds
from tests.chats.chat_files import chats
from tests.chats.prompts.prompt_files import sums
from tests.mixing.test_counting import in_world, stop_at
from tests.mixing.test_resume import Packer
from tests.shard_files import jpeg, write_jsonl, write_tars
from tests.sources.tiny_processors import tiny_tokenizer
from tests.stores.tiny_stores import write
from tests.streams import Numbers, NumbersAhead, assert_exact_resume, delivered, identity, in_lane, plain, resumed


def compressed(folder, sizes):
    write_jsonl(folder, sizes)
    for path in sorted(folder.glob("*.jsonl")):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return str(folder)


def image_lines(folder):
    folder.mkdir()
    (folder / "0.jpg").write_bytes(jpeg(0))
    (folder / "all.jsonl").write_text('{"imagepath": "0.jpg"}\n' * 30)
    return str(folder / "all.jsonl")


PROMPTS = {"max_prompt_length": 64, "repeat": 2}
KINDS = {
    "map-style": lambda _, **given: Numbers("s", 50, **given),
    "ahead": lambda _, **given: NumbersAhead("s", 50, **given),
    "copies": lambda _, **given: Numbers("s", 48, records_per_block=3, **given),
    "list": lambda _, **given: named(list(range(40)), name="s", percent=1, **given),
    "jsonl": lambda at, **given: JsonlIterableDataset(write_jsonl(at, [9, 1, 30, 17]), name="s", percent=1, **given),
    "jsonl blocks": lambda at, **given: JsonlIterableDataset(
        write_jsonl(at, [9, 1, 30, 17]), block_size=4, shuffle_buffer=10, name="s", percent=1, **given
    ),
    "tar": lambda at, **given: MetaDistributedWebDataset(write_tars(at, [9, 14, 7]), name="s", percent=1, **given),
    "tar with sidecars": lambda at, **given: MetaDistributedWebDataset(
        write_tars(at, [9, 14, 7]), meta_names=["score"], name="s", percent=1, **given
    ),
    "compressed": lambda at, **given: JsonlIterableDataset(
        compressed(at, [9, 14, 7, 20]), shuffle_buffer=5, name="s", percent=1, **given
    ),
    "images": lambda at, **given: ImageJsonlDataset(image_lines(at), name="s", percent=1, **given),
    "windows": lambda at, **given: SeqDataset(write("bin", at), 2, name="s", percent=1, **given),
    "prompts": lambda at, **given: RLHFDataset(
        sums(at.with_suffix(".parquet"), 30), tiny_tokenizer(), PROMPTS, name="s", percent=1, **given
    ),
    "chats": lambda at, **given: SFTChatDataset(
        chats(at.with_suffix(".parquet"), 30), tiny_tokenizer(), {"max_length": 256}, name="s", percent=1, **given
    ),
}
IN_SHARDS = ("jsonl", "jsonl blocks", "tar", "compressed")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Each test has its own cache."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """Where a source's files are written, the same ones each time."""
    numbers = iter(range(100))
    return lambda: tmp_path / f"data{next(numbers)}" / "s"


def source_of(kind, folder, **given):
    """Files are written anew in another folder: what determines a part must not depend on where they lie."""
    at = folder()
    at.parent.mkdir(parents=True)
    return KINDS[kind](at, **given)


def once(*sources, **options):
    return MergedDataset(list(sources), cyclic=False, stop="all_exhausted", **options)


def names_of(samples):
    """Which records they are, wherever their shards lie."""
    return [name_of(identity(sample)) for sample in samples]


def name_of(record):
    _, place, key = record
    return (Path(place).name, key) if key is not None else place


def whole_of(make):
    """What one lane delivers."""
    return Counter(names_of(once(make())))


@pytest.mark.parametrize("kind", KINDS)
def test_both_parts_are_all_records_each_once(kind, folder):
    """Of each kind of source, over one lane and over several."""
    everything = whole_of(lambda: source_of(kind, folder))
    parts = [source_of(kind, folder, holdout=0.4, part=part) for part in ("train", "valid")]
    for lanes in ((1, 0), (2, 3)):
        counts = [delivered(lambda source=source: once(source), *lanes) for source in parts]
        found = [Counter({name_of(record): n for record, n in each.items()}) for each in counts]
        assert min(map(len, found)) > 0
        assert found[0] + found[1] == everything
        assert max(everything.values()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_holdout_contains_a_smaller_one(kind, folder):
    """So that nobody is evaluated with what was trained on before."""
    held = [whole_of(lambda h=h: source_of(kind, folder, holdout=h, part="valid")) for h in (0.2, 0.4, 0.7)]
    assert held[0] <= held[1] < held[2]


@pytest.mark.parametrize("kind", IN_SHARDS)
def test_another_shard_moves_no_record(kind, tmp_path, folder):
    """Nor does another seed, another lane, or another name of the source."""
    valid = {"holdout": 0.4, "part": "valid"}
    source = source_of(kind, folder, **valid)
    before = Counter(names_of(once(source, seed=1)))
    more = tmp_path / "more"
    more.mkdir()
    shards = sorted({Path(url) for url in source.source.shards.urls})
    for path in [*shards, *shards[0].parent.glob("*.meta.jsonl")]:
        (more / path.name).write_bytes(path.read_bytes())
    (more / shards[0].name.replace("00000", "00009")).write_bytes(shards[0].read_bytes())
    after = Counter(names_of(once(type(source)(str(more), name="t", percent=3, **valid), seed=2)))
    assert before == Counter({name: n for name, n in after.items() if not name[0].startswith("00009")})
    assert len(after) > len(before)


@given(st.floats(0.001, 0.999), st.integers(0, 2**63 - 1))
def test_as_many_are_held_out_as_asked(holdout, seed):
    """Within five standard deviations, of any shard."""
    numbers = np.arange(10_000)
    held = Part(holdout, "valid").holds(numbers, np.uint64(seed))
    assert (held == ~Part(holdout, "train").holds(numbers, np.uint64(seed))).all()
    assert abs(held.sum() - 10_000 * holdout) <= 5 * (10_000 * holdout * (1 - holdout)) ** 0.5


@pytest.mark.parametrize(
    ("seed", "held"),
    [
        (MAP_STYLE_SEED, [23, 85, 158, 277, 662]),
        (shard_seeds(["00000.tar"])[0], [98, 174, 243, 330, 590, 618, 763, 785]),
    ],
)
def test_parts_stay_as_they_are(seed, held):
    """A later version must not move a record: training would be evaluated with what it was trained on."""
    assert np.flatnonzero(Part(0.01, "valid").holds(np.arange(800), seed)).tolist() == held


@pytest.mark.parametrize(
    ("kind", "function", "part"),
    [
        (kind, function, ("train", "valid")[(at + number) % 2])
        for at, kind in enumerate(("map-style", "ahead", "copies", "jsonl blocks", "compressed"))
        for number, function in enumerate(("plain", "Packer", "single"))
    ],
)
def test_a_resume_is_the_suffix(kind, function, part, folder):
    """From every step, also into a window or block of which records are left out."""
    functions = {
        "plain": {},
        "Packer": {"process_fn": Packer()},
        "single": {"single_process_fn": lambda record: [dict(record), dict(record)]},
    }
    source = source_of(kind, folder, holdout=0.4, part=part)
    source.__dict__.update(functions[function])
    if function == "Packer" and kind not in ("map-style", "ahead", "copies"):
        source.process_fn = None
    assert_exact_resume(lambda: MergedDataset([source, Numbers("n", 7)], seed=3), steps=12, beyond=12, num_workers=2)


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        *((kind, "plain") for kind in ("map-style", "ahead", "jsonl blocks", "tar", "compressed")),
        *((kind, function) for kind in ("map-style", "jsonl blocks") for function in ("single", "stream")),
    ],
)
def test_other_topologies_read_each_record_of_a_part_once(kind, function, folder):
    """What two ranks of two workers left, three go on with, then one."""
    source = source_of(kind, folder, holdout=0.4, part="train")
    if function == "single":
        source.single_process_fn = dict
    elif function == "stream":
        source.process_fn = by_two
    make = lambda: once(source)  # noqa: E731
    got, states = Counter(), {}
    for dp_size, num_workers, steps in ((2, 2, 5), (3, 1, 2), (1, 3, 99)):
        got += read_in(make, dp_size, num_workers, steps, states)
        states = stop_at(make, dp_size, num_workers, steps, states)
    assert got == whole_of(lambda: source)


def by_two(records):
    """A stream function whose bursts are of two records, or of the last one."""
    for first in records:
        yield from [first, *islice(records, 1)]


def read_in(make, dp_size, num_workers, steps, states):
    """The records that `stop_at` gets."""
    got = Counter()
    for rank in range(dp_size):
        lanes = [
            iter(in_lane(in_world(make, dp_size, rank, states), worker, num_workers)) for worker in range(num_workers)
        ]
        got += Counter(names_of(s for number in range(steps + rank) for s in islice(lanes[number % num_workers], 1)))
    return got


@pytest.mark.parametrize("kind", ["map-style", "copies", "jsonl blocks", "compressed"])
def test_the_order_is_that_of_the_whole_without_the_other_part(kind, folder):
    """Blocks and windows stay as they are; what is left out is not counted."""
    whole = [plain(sample) for sample in once(source_of(kind, folder), seed=5)]
    sources = [source_of(kind, folder, holdout=0.4, part=part) for part in ("train", "valid")]
    for source in sources:
        samples = list(once(source, seed=5))
        kept = {names_of([sample])[0] for sample in samples}
        assert names_of(samples) == [name for name in names_of(whole) if name in kept]
        cursor = to_state(samples)["cursor/0/0/0/0/s"]
        assert cursor.keys() <= {"draws", "clock", "epoch", "window", "taken"}


def test_what_is_of_the_other_part_is_not_read():
    """A record that cannot be read does no harm there."""

    class Broken(Numbers):
        def __getitem__(self, index):
            assert index in held
            return super().__getitem__(index)

    held = set(np.flatnonzero(Part(0.1, "valid").holds(np.arange(300), MAP_STYLE_SEED)).tolist())
    samples = list(once(Broken("s", 300, holdout=0.1, part="valid")))
    assert {sample["value"] for sample in samples} == held


def test_records_that_belong_together_are_of_one_part():
    """Copies of a prompt would else be trained on and evaluated with."""
    blocks = Counter(s["value"] // 3 for s in once(Numbers("s", 90, records_per_block=3, holdout=0.5, part="valid")))
    assert 5 < len(blocks) < 25
    assert set(blocks.values()) == {3}


@pytest.mark.parametrize("function", [{}, {"single_process_fn": dict}, {"process_fn": Packer()}])
@pytest.mark.parametrize("cyclic", [True, False])
def test_a_share_of_the_other_part_alone_is_passed_over(function, cyclic):
    """Two blocks a lane and epoch: that none of them is of the part is no failure of a function's."""
    source = lambda: Numbers("s", 8, holdout=0.3, part="valid", **function)  # noqa: E731
    values = {sample["value"] for sample in once(Numbers("s", 8, holdout=0.3, part="valid"))}
    assert 0 < len(values) < 4
    for rank in range(4):
        dataset = MergedDataset([source()], cyclic=cyclic, stop="all_exhausted")
        dataset.set_data_parallel(4, rank)
        samples = list(islice(dataset, 30))
        assert len(samples) == 30 if cyclic else len(samples) <= 3


def test_a_lane_without_a_record_of_the_part_ends_nothing():
    """As one without a block: under first_exhausted the other sources go on."""
    make = lambda: MergedDataset([Numbers("s", 8, holdout=0.3, part="valid"), Numbers("n", 40)], cyclic=False)  # noqa: E731
    with_part = {sample["__index__"] for sample in once(Numbers("s", 8, holdout=0.3, part="valid"))}
    lanes = [[sample["__datasetname__"] for sample in in_lane(make(), worker, 8)] for worker in range(8)]
    assert sum(lane.count("s") for lane in lanes) == len(with_part)
    assert all(lane.count("n") == 5 for lane in lanes if "s" not in lane)


def test_a_lane_without_a_record_of_the_part_is_not_missing():
    """In the states of its rank: it has delivered nothing, and will not."""
    make = lambda: once(Numbers("s", 100, holdout=0.01, part="valid")).finite()  # noqa: E731
    assert [len(list(in_lane(make(), worker, 2))) for worker in range(2)] == [0, 2]
    states = {}
    for sample in in_lane(make(), 1, 2):
        states.update(to_state(mixed_collate([sample])))
    assert states["cursor/0/0/0/1/"]["batches"] == 2
    resumed(make, states)


def test_a_lane_that_never_gets_a_record_says_so():
    """Unshuffled blocks are dealt alike in each epoch: it would look on without end."""
    make = lambda: MergedDataset(  # noqa: E731
        [Numbers("s", 8, holdout=0.3, part="valid")], shuffle_unstreaming_subsets=False
    )
    (worker, *_), lucky = workers_without(make, 8)
    assert len(list(islice(in_lane(make(), lucky, 8), 3))) == 3
    with pytest.raises(
        SourceError, match=r"'s': expected records of the part valid of holdout 0\.3, got none in 9 epochs"
    ):
        next(iter(in_lane(make(), worker, 8)))


def workers_without(make, num_workers):
    """The workers that have no record in a finite pass over the same order, and one that has."""
    found = {worker: len(list(in_lane(make().finite(), worker, num_workers))) for worker in range(num_workers)}
    return [worker for worker, count in found.items() if not count], max(found, key=found.get)


@pytest.mark.parametrize("kind", ["map-style", "jsonl", "compressed"])
def test_a_source_without_a_record_of_the_part_is_an_error(kind, folder):
    """Too few records for so small a holdout."""
    dataset = MergedDataset([source_of(kind, folder, holdout=1e-9, part="valid")])
    with pytest.raises(SourceError, match="source 's': expected records of the part valid of holdout 1e-09, got none"):
        next(iter(dataset))


@pytest.mark.parametrize(
    "other", [{}, {"holdout": 0.3, "part": "valid"}, {"holdout": 0.31, "part": "train"}], ids=["none", "part", "more"]
)
def test_a_resume_with_another_part_is_refused(other):
    """Records would come again, or be trained on that were held out."""
    make = lambda **part: MergedDataset([Numbers("s", 30, **part), Numbers("n", 9)])  # noqa: E731
    states = to_state(list(islice(make(holdout=0.3), 9)))
    resumed(lambda: make(holdout=0.3, part="train"), states)
    with pytest.raises(StateError, match=r"source 's' has another order(.|\n)*part train of holdout 0\.3"):
        resumed(lambda: make(**other), states)


BAD = [
    ({"holdout": 0}, "expected a number above 0 and below 1 as holdout, got 0"),
    ({"holdout": 1.0}, "expected a number above 0 and below 1 as holdout, got 1.0"),
    ({"holdout": True}, "expected a number above 0 and below 1 as holdout, got True"),
    ({"holdout": "1%"}, "expected a number above 0 and below 1 as holdout, got '1%'"),
    ({"holdout": 0.1, "part": "test"}, "expected one of train, valid as part, got 'test'"),
    ({"part": "valid"}, "expected a holdout where there is a part, got none, and 'valid' as part"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_is_not_valid_is_refused(given, message, tmp_path):
    """When the mixture is built, and by a check of the recipe, whichever way it is written."""
    with pytest.raises(ValueError, match=f"'s': {message}"):
        MergedDataset([Numbers("s", 30, **given)])
    keys = "".join(f", {key}: {json.dumps(value)}" for key, value in given.items())
    at = f"{{path: {tmp_path}"
    for source in (f"params: {at}}}, name: s, percent: 1{keys}", f"params: {at}, name: s, percent: 1{keys}}}"):
        recipe = tmp_path / "recipe.yaml"
        datasets = f"[{{target: streamdata.JsonlIterableDataset, {source}}}]"
        recipe.write_text(f"target: streamdata.MergedDataset\nparams:\n  datasets: {datasets}\n")
        (problem,) = check_recipe(str(recipe))
        assert message in str(problem)


def test_a_mixture_has_no_part():
    """Its sources have."""
    inner = MergedDataset([Numbers("s", 30)], name="in", percent=1)
    inner.holdout = 0.1
    with pytest.raises(ValueError, match=r"'in': expected no holdout of a mixture, got the part train of holdout 0\.1"):
        MergedDataset([inner])


def test_a_recipe_has_it_as_keys(tmp_path):
    """Beside percent; the part may be a variable, so that one recipe is for both."""
    write_jsonl(tmp_path / "shards", [40])
    source = f"{{target: streamdata.JsonlIterableDataset, params: {{path: {tmp_path / 'shards'}}}, name: s"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "target: streamdata.MergedDataset\nparams:\n  cyclic: false\n"
        f"  datasets: [{source}, percent: 1, holdout: 0.25, part: '${{variables:part}}'}}]\n"
    )
    keys = [
        {sample["__key__"] for sample in instantiate_from_yaml(str(recipe), {"part": part})}
        for part in ("train", "valid")
    ]
    assert set.union(*keys) == {str(number) for number in range(40)}
    assert not set.intersection(*keys)
    assert 2 < len(keys[1]) < 20


def test_a_weight_by_records_is_that_of_the_part():
    """What is held out is not weighed as the whole source."""
    by = {"by": "records"}
    dataset = MergedDataset([Numbers("s", 1000, by, holdout=0.1, part="valid"), Numbers("n", 100, by)])
    assert Counter(s["__datasetname__"] for s in islice(dataset, 100)) == {"s": 50, "n": 50}
