"""A source of shards by itself."""

import copy
import lzma
import pickle
from collections import Counter

import pytest
from torch.utils.data import DataLoader, IterableDataset

from streamdata import (
    ImageFolderDataset,
    ImageJsonlDataset,
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    SourceError,
    mixed_collate,
    named,
    to_state,
)
from tests.shard_files import jpeg, write_jsonl, write_tars
from tests.streams import assert_exact_resume, plain


def lines(folder, **attributes):
    """Three shards, 46 records."""
    path = write_jsonl(folder, [20, 19, 7]) if not list(folder.glob("*")) else str(folder)
    return JsonlIterableDataset(path, block_size=4, shuffle_buffer=8, **attributes)


def mixed(folder):
    """What it is alone."""
    return MergedDataset([named(lines(folder), name="JsonlIterableDataset", percent=1)], cyclic=False)


@pytest.mark.parametrize("context", [None, "fork"])
def test_it_is_the_mixture_of_itself(tmp_path, context):
    """Pass after pass, also in workers that are forked before anybody has asked it for anything."""
    options = {} if context is None else {"num_workers": 2, "multiprocessing_context": context}
    alone, mixture = (DataLoader(make(tmp_path), collate_fn=mixed_collate, **options) for make in (lines, mixed))
    passes = [([plain(b) for b in alone], [plain(b) for b in mixture]) for _ in range(2)]
    assert all(got == wanted for got, wanted in passes)
    assert passes[0] != passes[1]
    assert {sample["__datasetname__"] for batch in passes[0][0] for sample in batch} == {"JsonlIterableDataset"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_resumes_exactly(tmp_path, num_workers):
    """By `set_dataloader_states`."""
    assert_exact_resume(lambda: lines(tmp_path), steps=8, beyond=40, num_workers=num_workers)


def test_it_goes_on_from_states(tmp_path):
    """And takes its own name, its functions, the pass and the rank."""
    source = lines(tmp_path, name="web")
    source.set_epoch(3)
    source.set_data_parallel(2, 1)
    source.single_process_fn = lambda record: {**record, "seen": True}
    samples = list(source)
    assert all(sample["seen"] and sample["__dprank__"] == 1 for sample in samples)
    again = next(source.__iter_from__(to_state(samples[:5])))
    assert plain(again) == plain(samples[5])
    assert again["__datasetname__"] == "web"


def test_ranks_read_each_record_once(tmp_path):
    """As of any mixture."""
    found = Counter()
    for rank in range(3):
        source = lines(tmp_path)
        source.set_data_parallel(3, rank)
        found.update((sample["__url__"], sample["__key__"]) for sample in source)
    assert set(found.values()) == {1}
    assert len(found) == 46


def test_its_shards_and_records_are_there(tmp_path):
    """In reading order."""
    source = MetaDistributedWebDataset(write_tars(tmp_path, [4, 5]))
    assert isinstance(source, IterableDataset)
    assert source.num_records == 9
    assert source.urls == [f"{tmp_path}/{number:05}.tar" for number in range(2)]


def test_records_without_an_index_are_counted_once(tmp_path, monkeypatch):
    """By reading them; another process of the node finds the count, and a pipe has none."""
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(b'{"a": 1}\n\n{"a": 2}\n'))
    assert JsonlIterableDataset(str(path)).num_records == 2
    monkeypatch.setattr("streamdata.shards.index.indexing.count_records", None)
    assert JsonlIterableDataset(str(path)).num_records == 2
    monkeypatch.undo()
    path.write_bytes(lzma.compress(b'{"a": 1}\n'))
    assert JsonlIterableDataset(str(path)).num_records == 1
    monkeypatch.setenv("STREAMDATA_ALLOW_PIPES", "1")
    with pytest.raises(ValueError, match="num_records: expected files"):
        assert JsonlIterableDataset(f"pipe:cat {path}").num_records


def test_a_copy_counts_its_own_passes(tmp_path):
    """One that was iterated before, too; and one that was pickled."""
    source = lines(tmp_path)
    first = [plain(sample) for sample in source]
    fresh = copy.copy(source)
    assert [plain(sample) for sample in fresh] == first
    sent = pickle.dumps(lines(tmp_path))
    assert "_own_mixture" in vars(pickle.loads(sent)), "its workers share what it knows of passes"
    assert [plain(sample) for sample in pickle.loads(sent)] == first


def test_a_copy_keeps_its_rank(tmp_path):
    """Else each rank's would read everything."""
    source = lines(tmp_path)
    source.set_data_parallel(3, 2)
    assert next(iter(copy.copy(source)))["__dprank__"] == 2


def test_one_within_a_mixture_is_not_prepared_for_workers(tmp_path):
    """Thousands of them would each have memory of their own; iterated here, it still works."""
    source = lines(tmp_path, name="web", percent=1)
    MergedDataset([source])
    assert "_own_mixture" not in source.__getstate__()
    assert len(list(source)) == 46


def test_what_a_row_says_is_no_state(tmp_path):
    """A field by the name of a batch's would be read into the trainer's states."""
    (tmp_path / "a.jsonl").write_text('{"__state__": "{\\"cursor/x\\": 1}"}\n')
    (sample,) = JsonlIterableDataset(str(tmp_path))
    assert "cursor/x" not in to_state(sample)
    assert "cursor/x" not in to_state([sample])


def test_shards_without_records_are_refused(tmp_path):
    """Read from their start, too: a run would train on nothing."""
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(b""))
    with pytest.raises(SourceError, match="expected records, got none in its 1 shards"):
        list(JsonlIterableDataset(str(tmp_path)))


@pytest.mark.parametrize("size", ["x", 1.5, None, True])
def test_a_shuffle_buffer_is_a_whole_number(tmp_path, size):
    """Of all sources of shards."""
    write_jsonl(tmp_path, [3])
    with pytest.raises(ValueError, match="expected a whole number as shuffle_buffer"):
        JsonlIterableDataset(str(tmp_path), shuffle_buffer=size)


@pytest.mark.parametrize("kind", ["folder", "lines"])
def test_images_alone_have_it_too(tmp_path, kind):
    """Those by index: iterated they are a stream of their own, with ranks, passes and states."""
    (tmp_path / "cat").mkdir()
    for number in range(9):
        (tmp_path / f"cat/{number}.png").write_bytes(jpeg(number))
    (tmp_path / "a.jsonl").write_text("".join(f'{{"imagepath": "cat/{number}.png"}}\n' for number in range(9)))

    def images(name="ImageJsonlDataset" if kind == "lines" else "ImageFolderDataset"):
        path = tmp_path / "a.jsonl" if kind == "lines" else tmp_path
        return (ImageJsonlDataset if kind == "lines" else ImageFolderDataset)(str(path), name=name)

    assert len(assert_exact_resume(images, steps=9, beyond=9)) == 9
    halves = []
    for rank in range(2):
        source = images("s")
        source.set_data_parallel(2, rank)
        source.set_epoch(1)
        halves += [(sample["__dprank__"], sample["__index__"]) for sample in source]
    assert {rank for rank, _ in halves} == {0, 1}
    assert sorted(index for _, index in halves) == list(range(9))
    assert isinstance(images()[3], dict)
