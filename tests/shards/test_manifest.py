import logging
import os
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamdata import JsonlIterableDataset, MergedDataset, MetaDistributedWebDataset, to_state
from streamdata.errors import ShardError
from streamdata.shards import make_manifest as making
from streamdata.shards.index_file import CHUNK_ROWS
from streamdata.shards.make_manifest import differences, make_manifest, take_stock
from streamdata.shards.manifest import NAME, ManifestError, decode_directory, decode_header, encode_rows, rows_bytes
from streamdata.shards.manifest_file import ManifestRows, RowRun, open_manifest
from streamdata.shards.storage import ANY_VERSION, stamp_of
from streamdata.shards.tar import TarShards
from tests.shard_files import write_jsonl as jsonl_files
from tests.shard_files import write_tars
from tests.streams import plain, through_json


@pytest.fixture
def tars(tmp_path):
    """A folder of four tars with sidecars, one empty."""
    return write_tars(tmp_path / "tars", [70, 3, 0, 40])


def index(*paths, target=None):
    """The manifest of some shards, made or brought up to date."""
    return make_manifest(take_stock(paths, target), num_processes=1)


def stream(path, states=None, kind=MetaDistributedWebDataset, **options):
    """The records of two epochs, of two ranks after one another, and the states after each."""
    source = kind(path, shuffle_buffer=10, **options)
    source.name, source.percent, source.max_epochs = "s", 1, 2
    dataset = MergedDataset([source], cyclic=False, seed=5)
    if states:
        dataset.set_dataloader_states(states)
    samples = list(dataset)
    return list(map(plain, samples)), [through_json(to_state(sample)) for sample in samples]


def unmade(folder, path, **options):
    """The stream without the manifest."""
    hidden = Path(folder, NAME).rename(Path(folder).parent / "away")
    try:
        return stream(path, **options)
    finally:
        hidden.rename(Path(folder, NAME))


@pytest.fixture
def asks_nothing(monkeypatch):
    """Once called: fails where something is listed or asked for its stamp."""

    def refuse(*_, **__):
        raise AssertionError("something was asked")

    def begin():
        for room in ("indexed", "sequential"):
            monkeypatch.setattr(f"streamdata.shards.{room}.stamps_of", lambda urls: refuse() if urls else [])
        for name in ("files_in", "files_matching", "is_folder"):
            monkeypatch.setattr(f"streamdata.shards.urls.{name}", refuse)
        monkeypatch.setattr("streamdata.shards.build.build", refuse)

    return begin


@pytest.mark.parametrize("pattern", ["", "/", "/*.tar", "/{00000..00003}.tar", "/0000[013].tar,TARS/00002.tar"])
@pytest.mark.parametrize("meta", [{}, {"meta_names": ["score"]}, {"meta_names": ["score"], "sidecar_key": "key"}])
def test_streams_with_a_manifest_are_those_without(tars, asks_nothing, pattern, meta):
    """By folder, glob, brace and list, with and without sidecars; nothing is listed or asked for."""
    path = tars + pattern.replace("TARS", tars)
    index(tars)
    expected = unmade(tars, path, **meta)
    asks_nothing()
    found = stream(path, **meta)
    assert found == expected
    assert len(found[0]) == 226


def test_states_pass_between_streams_with_and_without_a_manifest(tars):
    """Either way, what follows is the same."""
    index(tars)
    records, states = unmade(tars, tars)
    assert stream(tars, states[100])[0] == records[101:]
    assert unmade(tars, tars, states=stream(tars)[1][100])[0] == records[101:]


def test_jsonl_and_compressed_shards_have_one_too(tmp_path, asks_nothing):
    """The latter without records, with their sizes."""
    folder = jsonl_files(tmp_path / "rows", [9, 600, 30])
    index(folder)
    expected = unmade(folder, folder, kind=JsonlIterableDataset)
    asks_nothing()
    assert stream(folder, kind=JsonlIterableDataset) == expected
    assert len(expected[0]) == 2 * 639
