"""Readers of other projects as map-style sources: on files that their writers made, where they are installed."""

import importlib
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.streams import assert_exact_resume, delivered

HERE = Path(__file__).parent
SAMPLES = [{"number": number, "text": f"text {number}"} for number in range(20)]


def assert_reads_all(module, folder):
    """Each sample once over uneven lanes, and a resume from each step."""
    make = importlib.import_module(f"examples.moving_over.{module}").make

    def finite():
        dataset = make(folder)
        dataset.cyclic = False
        return dataset

    assert set(delivered(finite, 2, 2).values()) == {1}
    whole = assert_exact_resume(lambda: make(folder), steps=12, beyond=8)
    assert Counter((sample["number"], sample["text"]) for (sample,) in whole) == {
        (s["number"], s["text"]): 1 for s in SAMPLES
    }


@pytest.mark.parametrize(
    ("module", "package", "name"),
    [("mosaicml", "streaming", "LocalDataset"), ("litdata", "litdata", "StreamingDataset")],
)
def test_what_a_reader_gives_by_number_is_a_source(monkeypatch, module, package, name):
    """By a stand-in, which has what the snippet needs of theirs."""

    class Reader:
        def __init__(self, folder, **_):
            self.folder = folder

        def __len__(self):
            return len(SAMPLES)

        def __getitem__(self, index):
            return SAMPLES[index]

    monkeypatch.setitem(sys.modules, package, SimpleNamespace(**{name: Reader}))
    monkeypatch.delitem(sys.modules, f"examples.moving_over.{module}", raising=False)
    assert_reads_all(module, "anywhere")
    monkeypatch.delitem(sys.modules, f"examples.moving_over.{module}")


@pytest.mark.parametrize(
    ("module", "package", "folder"), [("mosaicml", "streaming", "mds"), ("litdata", "litdata", "litdata")]
)
def test_their_own_reader_reads_their_own_file(module, package, folder):
    """What stands beside this file."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        pytest.skip(f"{package} is not installed: {error}")
    assert_reads_all(module, str(HERE / folder))
