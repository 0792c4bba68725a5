"""The batches and states of our loader for torchtitan, under each version's protocol; no torchtitan is needed."""

import ast
import importlib.util
from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from streamdata import MergedDataset, named
from tests.compat.jobs import needs
from tests.compat.titan_versions import VERSIONS, build, keywords, load

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed.checkpoint")
under_each = pytest.mark.parametrize("version", VERSIONS)

NUM_DOCUMENTS = 240


class Documents:
    """Of 1 to 19 tokens, which say of which document they are; the first two are not trained on."""

    def __len__(self) -> int:
        return NUM_DOCUMENTS

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = 100 * (index + 1) + torch.arange(1 + index * 7 % 19)
        return {"input_ids": tokens, "labels": torch.where(tokens % 100 < 2, -100, tokens)}


def of_documents(version: str) -> ModuleType:
    """The example, which reads these documents."""
    module = load(version)
    module.training_set = lambda **functions: MergedDataset(
        [named(Documents(), name="documents", percent=1, **functions)], seed=1
    )
    return module


def pieces(batches: Iterator[Any]) -> list[tuple[list[int], list[int], list[int]]]:
    """Tokens, positions and labels from each position 0 on."""
    found = []
    for inputs, labels in batches:
        columns = [column.flatten() for column in (inputs["input"], inputs["positions"], labels)]
        begins = torch.nonzero(columns[1] == 0).flatten().tolist()
        assert begins[0] == 0
        parts = [column.tensor_split(begins[1:]) for column in columns]
        found += [tuple(part.tolist() for part in piece) for piece in zip(*parts, strict=True)]
    return found


def documents(batches: Iterator[Any]) -> list[int]:
    """Which documents these are, in their sequence."""
    return [tokens[0] // 100 - 1 for tokens, _, _ in pieces(batches) if tokens[0]]


@needs("torchtitan")
def test_what_is_installed_builds_a_loader_with_these_keywords() -> None:
    """Its source is read, since its Trainer begins by setting a CUDA device."""
    (folder,) = importlib.util.find_spec("torchtitan").submodule_search_locations
    tree = ast.parse(Path(folder, "trainer.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (call,) = [call for call in calls if ast.unparse(call.func) == "config.dataloader.build"]
    assert {keyword.arg for keyword in call.keywords} == keywords(load("installed"), 1, 1).keys()


@under_each
def test_a_batch_is_tokens_positions_and_labels_of_one_shape(version: str) -> None:
    """All else in it would be a keyword of the model's `forward`."""
    module = load(version)
    inputs, labels = next(iter(build(module)))
    assert set(inputs) == {"input", "positions"}
    for tensor in (*inputs.values(), labels):
        assert (tensor.shape, tensor.dtype) == ((80,) if module.FLAT else (2, 40), torch.int64)


@under_each
def test_rows_are_whole_documents_whose_labels_are_the_next_tokens(version: str) -> None:
    """What fills a row up is one document, which is not trained on."""
    are_fills = []
    for tokens, positions, labels in pieces(islice(build(of_documents(version)), 40)):
        assert positions == list(range(len(tokens)))
        are_fills.append(not tokens[0])
        if tokens[0]:
            stored = Documents()[tokens[0] // 100 - 1]
            assert tokens == stored["input_ids"].tolist()
            assert labels == [*stored["labels"][1:].tolist(), -100]
        else:
            assert (set(tokens), set(labels)) == ({0}, {-100})
    assert any(are_fills)
    assert (True, True) not in pairwise(are_fills)


def test_both_versions_read_the_same_rows() -> None:
    """Those of a batch are stacked, or joined."""
    old, new = (pieces(islice(build(of_documents(version)), 5)) for version in ("0.3.0", "main"))
    assert old == new


def test_a_batch_that_is_not_whole_rows_is_refused() -> None:
    """The main branch counts tokens, where 0.3.0 counted rows."""
    settings = {**keywords(load("main"), 40, 2), "num_tokens_per_batch": 100}
    with pytest.raises(ValueError, match=r"rows of 40 tokens, got batches of 100 tokens\n.* a multiple of"):
        load("main").TitanLoader.Config().build(**settings)


@under_each
def test_a_checkpoint_goes_on_with_the_next_batch(version: str, tmp_path: Path) -> None:
    """Saved and loaded as torchtitan's CheckpointManager does: the loader itself, under one key."""
    import torch.distributed.checkpoint as dcp

    module = of_documents(version)
    loader = build(module)
    batches = iter(loader)
    assert len(documents(islice(batches, 7))) > 7
    dcp.save({"dataloader": loader}, checkpoint_id=tmp_path)
    resumed = build(module)
    dcp.load({"dataloader": resumed}, checkpoint_id=tmp_path)
    assert pieces(islice(resumed, 9)) == pieces(islice(batches, 9))


def save(version: str, folder: Path, rank: int) -> list[int]:
    """What one of two ranks reads before a checkpoint."""
    import torch.distributed.checkpoint as dcp

    loader = build(of_documents(version), rank=rank, size=2)
    found = documents(islice(loader, 7))
    dcp.save({"dataloader": loader}, checkpoint_id=folder / "checkpoint")
    return found


@pytest.mark.parametrize("version", VERSIONS[1:])  # states are alike in both, and processes take their time
def test_a_checkpoint_of_two_ranks_goes_on_with_one(version: str, tmp_path: Path, on_ranks: Any) -> None:
    """Where torchtitan's own loaders refuse: no document comes twice in the epoch, and none is left out."""
    import torch.distributed.checkpoint as dcp

    before = [document for found in on_ranks(partial(save, version, tmp_path)) for document in found]
    loader = build(of_documents(version))
    dcp.load({"dataloader": loader}, checkpoint_id=tmp_path / "checkpoint")
    found = before + documents(islice(loader, 50))
    lookahead = 16
    assert len(before) > 2 * 7 * 2
    assert len(set(found[: NUM_DOCUMENTS - lookahead])) == NUM_DOCUMENTS - lookahead
    assert set(found[: NUM_DOCUMENTS + lookahead]) == set(range(NUM_DOCUMENTS))
