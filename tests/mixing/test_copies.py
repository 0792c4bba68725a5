"""What a dataset shares with what it was made of or copied from."""

import copy

from streamdata import MergedDataset
from streamdata.mixing.control import Control, _own_all
from tests.streams import Numbers


def test_all_that_a_process_received_is_its_own_before_it_forks():
    """Several datasets at once."""
    originals = [Control() for _ in range(3)]
    copies = [copy.copy(control) for control in originals]
    _own_all()
    for control in originals:
        control.epoch_pass = 7
    assert [control.epoch_pass for control in copies] == [None] * 3


def test_the_list_of_sources_is_the_callers():
    """What it is given later is no part of the mixture."""
    sources = [Numbers("a", 5)]
    dataset = MergedDataset(sources, cyclic=False)
    sources.append(Numbers("b", 5))
    assert {sample["__datasetname__"] for sample in dataset} == {"a"}
    assert len(list(MergedDataset(tuple(sources[:1]), cyclic=False))) == 5
