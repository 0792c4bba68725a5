"""Sources of shards: exactly once over lanes, exact resume from every step, windows, restarts at window level."""

import gzip
import json
import shutil
import tracemalloc
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streamdata import (
    ImageJsonlDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    ShardError,
    SourceError,
    StateError,
    merge_states,
    mixed_collate,
    record_rng,
    to_state,
)
from tests.mixing.test_resume import Packer
from tests.shard_files import jpeg, write_jsonl, write_tars
from tests.streams import assert_exact_resume, delivered, loaded, plain, resumed

SIZES = [7, 1, 13, 4]


def compressed(folder: Path, pattern: str) -> str:
    """Gzip the shards of a folder."""
    for path in folder.glob(pattern):
        if ".meta." not in path.name:
            with gzip.open(f"{path}.gz", "wb") as file:
                file.write(path.read_bytes())
            path.unlink()
    return str(folder)


def write_arrays(folder: Path, sizes: list[int]) -> str:
    """The same records as arrays, some on one line; beside them what Hugging Face notes in a folder."""
    for number, path in enumerate(sorted(Path(write_jsonl(folder, sizes)).glob("*.jsonl"))):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.with_suffix(".json").write_text(json.dumps(rows, indent=(None, 2)[number % 2]))
        path.unlink()
    (folder / "dataset_info.json").write_text('{\n "alpaca": {}\n}')
    return str(folder)


WRITE = {
    "tar": write_tars,
    "jsonl": write_jsonl,
    "json": write_arrays,
    "jsonl.gz": lambda folder, sizes: compressed(Path(write_jsonl(folder, sizes)), "*.jsonl"),
    "tar.gz": lambda folder, sizes: compressed(Path(write_tars(folder, sizes)), "*.tar"),
}
KINDS = list(WRITE)


@pytest.fixture
def make_source(tmp_path):
    """Build a source of 25 records in four shards; the files are written once."""

    def make(kind, name="s", percent=1, **options):
        folder = tmp_path / kind / name
        if not folder.exists():
            WRITE[kind](folder, SIZES)
        if kind.startswith("tar"):
            source = MetaDistributedWebDataset(str(folder), meta_names=["score"], **options)
        else:
            source = JsonlIterableDataset(f"{folder}/*.json" if kind == "json" else str(folder), **options)
        source.name, source.percent = name, percent
        return source

    return make


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("block_size", "shuffle_buffer"), [(1, 0), (3, 0), (3, 7), (64, 1000)])
def test_every_record_is_delivered_once(make_source, kind, block_size, shuffle_buffer):
    """Over uneven lanes, as a multiset."""
    source = make_source(kind, block_size=block_size, shuffle_buffer=shuffle_buffer)
    for dp_size, num_workers in ((1, 0), (2, 3), (5, 2)):
        got = delivered(lambda: MergedDataset([source], cyclic=False), dp_size, num_workers)
        assert len(got) == sum(got.values()) == sum(SIZES)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_workers", "function"), [(2, None), (0, Packer())])
def test_resume_is_exact(make_source, kind, num_workers, function):
    """From every step over two epochs, windows of two blocks, with and without a stateful function."""

    def with_value(record):
        return {**record, "value": int(record["__key__"].strip("r"))}

    source = make_source(kind, block_size=3, shuffle_buffer=6, single_process_fn=with_value)
    source.process_fn = function
    other = make_source("jsonl", "other", 0.5)
    whole = assert_exact_resume(
        lambda: MergedDataset([source, other], seed=5), steps=40, beyond=20, num_workers=num_workers
    )
    assert whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_shuffled_within_windows_and_over_blocks(make_source, kind):
    """Another order than the files'; the natural order where shuffling is off; another one in each epoch."""

    def keys(**options):
        source = make_source(kind)
        return [(s["__url__"], s["__key__"]) for s in islice(iter(MergedDataset([source], **options)), 50)]

    shuffled, natural = keys(), keys(shuffle_streaming_subsets=False)
    assert natural[:25] == sorted(natural[:25], key=lambda pair: (pair[0], len(pair[1]), pair[1])) == natural[25:]
    assert shuffled[:25] != natural[:25]
    assert Counter(shuffled[:25]) == Counter(natural[:25]) == Counter(shuffled[25:])
    assert shuffled[:25] != shuffled[25:]


def test_the_elements_of_arrays_come_in_the_order_of_lines(make_source):
    """With the same keys, since both have an index of records."""

    def keys(kind):
        samples = MergedDataset([make_source(kind, block_size=3, shuffle_buffer=6)], seed=5)
        return [(Path(sample["__url__"]).stem, sample["__key__"], sample["value"]) for sample in islice(samples, 50)]

    assert keys("json") == keys("jsonl")


def test_blocks_do_not_depend_on_the_topology(make_source):
    """The union of two lanes' first epochs is one lane's first epoch."""
    source = make_source("tar")
    assert delivered(lambda: MergedDataset([source], cyclic=False), 1, 0) == delivered(
        lambda: MergedDataset([source], cyclic=False), 2, 2
    )


def test_metadata_joins_the_record(make_source):
    """The fields named in meta_names, of the line whose key is the record's."""
    samples = list(MergedDataset([make_source("tar")], cyclic=False))
    assert all(sample["score"] == int(sample["__key__"][1:]) / 2 for sample in samples)
    assert all(sample["txt"] == f"text of {int(sample['__key__'][1:])}".encode() for sample in samples)


def test_record_rng_depends_on_the_record_and_the_epoch_alone(make_source):
    """Not on the lane that reads it; copies of a shard draw their own numbers."""

    def noisy(record):
        return {**record, "noise": float(record_rng(record).random())}

    def draws(num_workers):
        source = make_source("tar", single_process_fn=noisy)
        batches = loaded(MergedDataset([source], cyclic=False), num_workers)
        return {sample["__key__"]: sample["noise"] for batch in batches for sample in batch}

    assert draws(0) == draws(3)
    assert len(set(draws(0).values())) == sum(SIZES)


def test_record_rng_needs_the_fields_of_a_record():
    """It says what it was given."""
    with pytest.raises(
        ValueError, match=r"expected a record as it was given to a process function, got the fields \['x'\]"
    ):
        record_rng({"x": 1})


def test_reload_from_url_level_goes_back_to_the_window(make_source):
    """Everything undelivered is delivered, with the rest of the earliest unfinished window; the function afresh."""

    def make():
        return MergedDataset([make_source("jsonl", block_size=5, shuffle_buffer=5)], cyclic=False)

    samples = list(make())
    states = to_state(samples[:12])
    dataset = make()
    dataset.set_dataloader_states(states, reload_from_url_level=True)
    rest = [plain(sample) for sample in dataset]
    assert len(rest) < 25
    again = len(rest) - 13
    assert 0 <= again < 5
    assert rest == [plain(sample) for sample in samples[12 - again :]]


def test_reload_from_url_level_at_the_end_of_an_epoch_may_be_repeated(tmp_path):
    """What was not delivered yet of its last burst is there again each time."""
    write_jsonl(tmp_path, [6])

    def thrice(records):
        for record in records:
            yield from [dict(record) for _ in range(3)]

    def make():
        source = JsonlIterableDataset(str(tmp_path), process_fn=thrice, shuffle_buffer=2)
        source.name, source.percent = "s", 1
        return MergedDataset([source])

    states = {}
    for sample in islice(make(), 19):
        states.update(to_state(sample))
        again = dict(states)
        for _ in range(3):
            dataset = make()
            again.update(to_state(next(iter(dataset.__iter_from__(again, reload_from_url_level=True)))))
        assert len(list(islice(make().__iter_from__(again), 5))) == 5


def test_reload_from_url_level_begins_with_the_window_of_what_a_packer_holds(tmp_path):
    """After every row: at the start of a window, nothing undelivered left out, a window too early at most."""
    source = JsonlIterableDataset(write_jsonl(tmp_path, [7, 13, 5]), Packer(), block_size=5, shuffle_buffer=5)
    source.name, source.percent = "s", 1
    dataset = MergedDataset([source], cyclic=False, shuffle_streaming_subsets=False)
    samples = list(dataset)
    stream = [number for sample in samples for number in sample["row"]]
    starts = [stream.index(first) for first in (0, 5, 7, 12, 17, 20)]  # of windows, which are blocks of a shard
    for step in range(1, len(samples)):
        rest = [number for s in dataset.__iter_from__(to_state(samples[:step]), True) for number in s["row"]]
        begin = len(stream) - len(rest)
        assert rest == stream[begin:]
        assert begin in [start for start in starts if start <= 4 * step][-2:]


def test_reload_from_url_level_accepts_another_sequence_length(make_source):
    """The function's state is not loaded, so that a run may go on with rows of another length."""

    class Long(Packer):
        def load_state_dict(self, state):
            raise AssertionError("not to be called")

    def make(function):
        return MergedDataset([make_source("jsonl", process_fn=function)])

    states = to_state(list(islice(iter(make(Packer())), 9)))
    assert len(list(islice(make(Long()).__iter_from__(states, reload_from_url_level=True), 5))) == 5
    with pytest.raises(AssertionError, match="not to be called"):
        next(make(Long()).__iter_from__(states))


def test_other_content_under_the_same_names_is_refused(make_source, tmp_path):
    """One more line in a shard is another dataset."""
    states = to_state(list(islice(iter(MergedDataset([make_source("jsonl")])), 3)))
    source = make_source("jsonl")
    with (tmp_path / "jsonl" / "s" / "00000.jsonl").open("a") as file:
        file.write('{"value": 99}\n')
    source = JsonlIterableDataset(str(tmp_path / "jsonl" / "s"))
    source.name, source.percent = "s", 1
    with pytest.raises(StateError, match=r"source 's' has another order(.|\n)*25 records(.|\n)*26 records"):
        MergedDataset([source]).set_dataloader_states(states)


def test_a_new_source_reads_what_lies_there_now(tmp_path):
    """A file replaced between two runs of one process is no damage, though the first run left it open."""
    for sizes in ([5], [5], [7]):
        folder = Path(write_jsonl(tmp_path / "draft", sizes))
        (tmp_path / "live").mkdir(exist_ok=True)
        (folder / "00000.jsonl").replace(tmp_path / "live" / "00000.jsonl")
        source = JsonlIterableDataset(str(tmp_path / "live"))
        source.name, source.percent = "s", 1
        assert len(list(MergedDataset([source], cyclic=False))) == sizes[0]


def test_a_record_beyond_its_window_is_refused(make_source):
    """Damaged states do not pass over records in silence."""
    states = to_state(list(islice(iter(MergedDataset([make_source("jsonl")])), 3)))
    states["cursor/0/0/0/0/s"]["taken"] = 1000
    with pytest.raises(
        StateError, match="source 's': states at record 1000 of window 0 in epoch 0, expected at most 25"
    ):
        next(iter(resumed(lambda: MergedDataset([make_source("jsonl")]), states)))


def test_data_may_move(make_source, tmp_path):
    """States hold no paths: the same shards in another folder resume."""
    states = to_state(list(islice(iter(MergedDataset([make_source("jsonl")])), 7)))
    shutil.move(tmp_path / "jsonl", tmp_path / "moved")
    source = JsonlIterableDataset(str(tmp_path / "moved" / "s"))
    source.name, source.percent = "s", 1
    assert str(tmp_path) not in json.dumps(states)
    rest = [sample["value"] for sample in islice(iter(resumed(lambda: MergedDataset([source]), states)), 18)]
    assert len(set(rest)) == 18


@pytest.fixture
def flawed(make_source, tmp_path):
    """A mixture of tars with a sidecar's line of no record and a record of no line, of blank lines, and of neither."""
    make_source("tar", "t"), make_source("jsonl", "j"), make_source("jsonl", "clean")
    sidecar = tmp_path / "tar" / "t" / "00000.meta.jsonl"
    sidecar.write_text(sidecar.read_text().replace("r00003", "x"))
    with (tmp_path / "jsonl" / "j" / "00000.jsonl").open("a") as file:
        file.write("\n\n")

    def make():
        inner = MergedDataset([make_source("tar", "t"), make_source("jsonl", "clean")])
        inner.name, inner.percent = "m", 1
        return MergedDataset([inner, make_source("jsonl", "j")])

    return make, sidecar


def test_what_of_the_shards_is_no_record_is_in_the_states(flawed):
    """By source and kind, where there is any; as JSON."""
    make, _ = flawed
    states = json.loads(json.dumps(to_state(list(islice(make(), 5)))))
    assert states["generation/0"]["anomalies"] == {
        "m.t": {"records without a sidecar line": 1, "sidecar lines without a record": 1},
        "j": {"blank lines": 2},
    }


def test_states_with_and_without_it_are_of_one_run(flawed):
    """Those of earlier versions lack it, and a sidecar may be mended: the order is the same, whichever rank tells."""
    make, sidecar = flawed
    samples = list(islice(make(), 12))
    states = to_state(samples[:5])
    del states["generation/0"]["anomalies"]
    again = resumed(make, states)
    assert [plain(sample) for sample in islice(again, 7)] == [plain(sample) for sample in samples[5:]]
    sidecar.write_text(sidecar.read_text().replace('"x"', '"r00003"'))
    other = to_state(next(iter(resumed(make, to_state(samples[:5])))))
    assert other["generation/0"]["anomalies"] == {"j": {"blank lines": 2}}
    for parts in ((states, other), (other, states), (other, to_state(samples[:5]))):
        assert merge_states(*parts)["generation/0"]["nodes"] == states["generation/0"]["nodes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"block_size": 0}, {"shuffle_buffer": -1}, {"block_bytes": 0}])
def test_impossible_sizes_are_refused(make_source, kind, options):
    """With what was expected."""
    with pytest.raises(ValueError, match="expected block_size >= 1 and shuffle_buffer >= 0"):
        make_source(kind, **options)


@pytest.fixture
def images(tmp_path):
    """Nine images and the JSONL file that names them."""
    lines = []
    for number in range(9):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number * 20))
        lines.append(json.dumps({"imagepath": f"{number}.jpg", "number": number}))
    (tmp_path / "images.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "images.jsonl"


def test_shards_without_records_end_in_an_error(tmp_path):
    """An endless stream over blank lines would look for one for ever; beside shards that have some, none is missed."""
    for name, lines in (("0", b"\n\n"), ("1", b'{"n": 1}\n')):
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines))
    blank, all_ = JsonlIterableDataset(str(tmp_path / "0.jsonl.gz")), JsonlIterableDataset(str(tmp_path))
    blank.name, all_.name, blank.percent, all_.percent = "blank", "all", 1, 1
    with pytest.raises(SourceError, match="source 'blank': expected records, got none in its 1 shards"):
        next(iter(MergedDataset([blank])))
    for lane in range(3):
        dataset = MergedDataset([all_])
        dataset.set_data_parallel(3, lane)
        assert [sample["n"] for sample in islice(dataset, 4)] == [1] * 4


def test_image_lines_carry_their_images(images):
    """Relative paths lie beside the JSONL file; other fields stay; indices behave as in a list."""
    dataset = ImageJsonlDataset(str(images))
    assert len(dataset) == 9
    assert [record["number"] for record in dataset.__getitems__([3, 0, 8])] == [3, 0, 8]
    assert abs(int(np.asarray(dataset[-1]["image"])[0, 0, 0]) - 160) < 8
    with pytest.raises(IndexError):
        dataset[9]


def test_image_lines_resume_exactly(images):
    """As a map-style source with look-ahead."""

    def make():
        dataset = ImageJsonlDataset(str(images))
        dataset.name, dataset.percent = "images", 1
        return MergedDataset([dataset])

    assert_exact_resume(make, steps=12)


def test_an_image_that_does_not_decode_names_its_place(images):
    """Source, line and path; with max_bad it is skipped and counted."""
    (images.parent / "4.jpg").write_bytes(b"no image")

    def make(max_bad):
        dataset = ImageJsonlDataset(str(images))
        dataset.name, dataset.percent, dataset.max_bad = "images", 1, max_bad
        return MergedDataset([dataset], cyclic=False)

    with pytest.raises(Exception, match=r"4\.jpg") as caught:
        list(make(0))
    assert "source 'images': __getitem__ failed at index 4" in "".join(caught.value.__notes__)
    samples = list(make(1))
    assert sorted(sample["number"] for sample in samples) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_a_line_without_an_image_is_an_error(images):
    """With its line and fields."""
    with images.open("a") as file:
        file.write('{"number": 9}\n')
    with pytest.raises(ShardError, match=r"images\.jsonl:10: expected an image's path in 'imagepath', got None"):
        ImageJsonlDataset(str(images))[9]


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 2), ("forkserver", 2)])
def test_shards_resume_exactly_with_real_workers(make_source, method, num_workers):
    """Sources are picklable, and open their files in the process that reads."""

    def make():
        return MergedDataset([make_source(kind, kind.replace(".", "_")) for kind in KINDS], seed=2)

    def batches(dataset, count, method):
        options = {"num_workers": num_workers, "multiprocessing_context": method}
        return list(islice(DataLoader(dataset, 2, collate_fn=mixed_collate, **options), count))

    want = [plain(batch) for batch in islice(loaded(make(), num_workers, 2), 16)]
    states = {}
    for batch in batches(make(), 7, "forkserver" if method == "spawn" else method):  # one that is spawned is slow
        states.update(to_state(batch))
    assert [plain(batch) for batch in batches(resumed(make, states), 9, method)] == want[7:]


def test_memory_of_the_heap_does_not_grow_with_the_records(tmp_path):
    """A source of a hundred times as many records costs the same: its index stays on disk."""

    def heap_of(folder, size):
        write_jsonl(folder, [size])
        JsonlIterableDataset(str(folder))  # builds the index
        tracemalloc.start()
        source = JsonlIterableDataset(str(folder))
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert source.source.num_records == size
        return used

    heap_of(tmp_path / "warm", 10)
    # The rows of the index would be 240 KB more; less than that other threads of this process may take meanwhile.
    assert heap_of(tmp_path / "large", 20_000) < heap_of(tmp_path / "small", 200) + (64 << 10)
