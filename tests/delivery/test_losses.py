"""The loss of each source: equal to a loop over tokens, for batches of any kind, weighted or not, over ranks."""

import math
import random
import runpy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import distributed

from streamdata import (
    MergedDataset,
    PackTokens,
    Pad,
    StreamLoader,
    TensorCollate,
    by_name,
    context_slice,
    loss_by_source,
    named,
)
from tests.ranks import run_on_ranks

NUM_SOURCES = 4


def sample(rng: random.Random, length: int) -> dict:
    """A document with its record, as it comes out of a stream."""
    ids = torch.tensor([rng.randrange(99) for _ in range(length)])
    record = (rng.randrange(NUM_SOURCES), 0, rng.randrange(99), 0)
    return {"input_ids": ids, "target_ids": ids.clone(), "__record__": record}


def packed(rng: random.Random, max_tokens: int = 16, **multiples: int) -> list[dict]:
    """Rows of whole documents."""
    documents = [sample(rng, rng.randint(1, 9)) for _ in range(rng.randint(1, 12))]
    return list(PackTokens(max_tokens, lookahead=rng.randint(1, 9), **multiples)(documents))


def filled(rng: random.Random) -> dict:
    """Rows of documents that are padded, and the source of each token, -1 of padding."""
    batch = TensorCollate()(packed(rng, document_multiple=4, row_multiple=8))
    whole, true = (batch[name].diff().tolist() for name in ("cu_seqlens_padded", "cu_seqlens"))
    documents = zip(batch["source_ids"].tolist(), whole, true, strict=True)
    batch["expected"] = [
        source if place < size else -1 for source, length, size in documents for place in range(length)
    ]
    return batch


def gapless(rng: random.Random) -> list[dict]:
    """Rows of one length without bounds, the last one padded."""
    rows = []
    for _ in range(rng.randint(1, 4)):
        lengths = [length for length in (rng.randint(1, 6), rng.randint(0, 5)) if length]
        lengths.append(12 - sum(lengths))
        found = [sample(rng, length) for length in lengths]
        positions = torch.cat([torch.arange(length) for length in lengths])
        records = torch.tensor([one["__record__"] for one in found])
        row = {"input_ids": torch.cat([one["input_ids"] for one in found]), "position_ids": positions}
        row["target_ids"] = row["input_ids"].clone()
        rows.append({**row, "source_ids": records[:, 0], "record_ids": records[:, 1:]})
    rows[-1]["source_ids"][-1] = -1
    rows[-1]["target_ids"][-lengths[-1] :] = -100
    return rows


def batch_of(kind: str, rng: random.Random) -> dict:
    """A batch, and of it in `expected` the source of each token."""
    if kind == "padded":
        samples = [sample(rng, rng.randint(1, 9)) for _ in range(rng.randint(1, 5))]
        batch = TensorCollate(fields={"input_ids": Pad(), "target_ids": Pad(-100)})(samples)
        length = batch["input_ids"].shape[1]
        batch["expected"] = [one["__record__"][0] for one in samples for _ in range(length)]
        return batch
    if kind == "filled":
        return filled(rng)
    rows = packed(rng) if kind == "packed" else gapless(rng)
    pad = Pad(multiple_of=rng.choice([1, 8])) if kind == "packed" else "stack"
    targets = Pad(-100, multiple_of=pad.multiple_of) if kind == "packed" else "stack"
    batch = TensorCollate(fields={"input_ids": pad, "target_ids": targets, "position_ids": pad})(rows)
    expected = []
    for row in rows:
        bounds = row.get("cu_seqlens", torch.cat([(row["position_ids"] == 0).nonzero()[:, 0], torch.tensor([12])]))
        for source, (begin, end) in zip(row["source_ids"].tolist(), pairwise(bounds.tolist()), strict=True):
            expected += [source] * (end - begin)
    batch["expected"] = expected + [-1] * (batch["input_ids"].numel() - len(expected))
    return batch


def in_a_loop(losses: torch.Tensor, batch: dict) -> tuple[list[float], list[float]]:
    """The same, token by token."""
    sums, counts = [0.0] * NUM_SOURCES, [0.0] * NUM_SOURCES
    shape = losses.shape
    masks = batch.get("loss_mask", batch["target_ids"] != -100 if "target_ids" in batch else torch.ones(shape))
    weights = batch.get("loss_weight", torch.ones(shape))
    columns = (losses, masks, weights)
    for source, loss, mask, weight in zip(batch["expected"], *(one.flatten().tolist() for one in columns), strict=True):
        if mask and source >= 0:
            sums[source] += loss * weight
            counts[source] += weight
    return sums, counts


@pytest.mark.parametrize("kind", ["padded", "packed", "gapless", "filled"])
@pytest.mark.parametrize("trained", ["mask", "targets", "all"])
def test_sums_equal_a_loop_over_tokens(kind, trained) -> None:
    """Whatever says which tokens are trained; with weights in every second batch; infinite where not trained."""
    for seed in range(12):
        rng = random.Random(seed)
        batch = batch_of(kind, rng)
        shape = batch["input_ids"].shape
        losses = torch.rand(shape)
        if trained == "mask":
            batch["loss_mask"] = (torch.rand(shape) < 0.6) & (batch["target_ids"] != -100)
            losses[~batch["loss_mask"]] = math.inf
        elif trained == "targets":
            losses[batch["target_ids"] == -100] = math.nan
        elif kind != "gapless" and -1 in batch["expected"]:
            continue  # padding that is no document: something has to say that it is not trained
        else:
            del batch["target_ids"]
        if seed % 2:
            batch["loss_weight"] = torch.rand(shape)
        sums, counts = loss_by_source(losses.requires_grad_(), batch, NUM_SOURCES)
        assert (sums.dtype, sums.shape, counts.dtype) == (torch.float64, (NUM_SOURCES,), torch.float64)
        assert not sums.requires_grad
        wanted = in_a_loop(losses.detach(), batch)
        torch.testing.assert_close(sums, torch.tensor(wanted[0], dtype=torch.float64))
        torch.testing.assert_close(counts, torch.tensor(wanted[1], dtype=torch.float64))
        means = by_name(sums, counts, ["a", "b", "c", "d"])
        assert means == {
            name: pytest.approx(total / count) for name, total, count in zip("abcd", *wanted, strict=True) if count
        }


def rows_apart(rng: random.Random, bounds: str) -> dict:
    """Packed rows that are padded, each by itself, and the source of each token."""
    rows = packed(rng)
    fields = {name: Pad(-100, multiple_of=8) for name in ("input_ids", "target_ids")}
    batch = TensorCollate(fields={**fields, "cu_seqlens": bounds, "position_ids": Pad(multiple_of=8)})(rows)
    expected = torch.full(batch["input_ids"].shape, -1)
    for place, row in zip(expected, rows, strict=True):
        sources = row["source_ids"].repeat_interleave(row["cu_seqlens"].diff())
        place[: len(sources)] = sources
    return {**batch, "expected": expected.flatten().tolist()}


def test_rows_that_are_kept_apart_begin_documents_where_their_bounds_say() -> None:
    """Whatever the positions of their padding are."""
    for seed in range(12):
        batch = rows_apart(random.Random(seed), "list")
        losses = torch.rand(batch["input_ids"].shape)
        for shape in (losses.shape, (-1,)):
            found = torch.stack(loss_by_source(losses.reshape(shape), batch, NUM_SOURCES))
            torch.testing.assert_close(found, torch.tensor(in_a_loop(losses, batch), dtype=torch.float64))


def test_losses_of_padded_documents_may_be_flat() -> None:
    """As a cross entropy over all tokens gives them."""
    for seed in range(12):
        batch = batch_of("padded", random.Random(seed))
        losses = torch.rand(batch["input_ids"].shape)
        found = torch.stack(loss_by_source(losses.flatten(), batch, NUM_SOURCES))
        torch.testing.assert_close(found, torch.tensor(in_a_loop(losses, batch), dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_nothing_has_no_losses(shape) -> None:
    """Of no source."""
    batch = {"source_ids": torch.zeros(shape[0], dtype=torch.int64)}
    assert not torch.stack(loss_by_source(torch.zeros(shape), batch, NUM_SOURCES)).any()


def sliced_sums(rank: int) -> list:
    """The sums over all of a batch that three ranks share, and those of the batch."""
    batch = TensorCollate()(packed(random.Random(0), 24, document_multiple=6))
    losses = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(0))
    one = context_slice({**batch, "losses": losses}, rank, 3)
    found = loss_by_source(one["losses"], one, NUM_SOURCES, distributed.group.WORLD)
    return [torch.stack(each) for each in (found, loss_by_source(losses, batch, NUM_SOURCES))]


def rank_sums(rank: int) -> list:
    """What a rank gets of its own batch, and over all; and the like of slices."""
    batch = batch_of("packed", random.Random(rank))
    losses = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(rank))
    own = loss_by_source(losses, batch, NUM_SOURCES)
    over_all = loss_by_source(losses, batch, NUM_SOURCES, distributed.group.WORLD)
    return [torch.stack(own), torch.stack(over_all), *sliced_sums(rank)]


def test_a_group_sums_over_its_ranks(tmp_path) -> None:
    """To the same on each, of whole batches and of slices of one."""
    found = run_on_ranks(tmp_path, rank_sums, 3)
    total = sum(own for own, *_ in found)
    for _, over_all, of_slices, of_batch in found:
        torch.testing.assert_close(over_all, total)
        torch.testing.assert_close(of_slices, of_batch)


def test_what_does_not_fit_is_refused() -> None:
    """Losses of a model that shifts, means, and batches that do not say what they are of."""
    batch = batch_of("padded", random.Random(0))
    losses = torch.rand(batch["input_ids"].shape)
    with pytest.raises(ValueError, match="pad a 0"):
        loss_by_source(losses[:, :-1], batch, NUM_SOURCES)
    with pytest.raises(ValueError, match="before any mean"):
        loss_by_source(losses.mean(), batch, NUM_SOURCES)
    with pytest.raises(ValueError, match="without provenance=False"):
        loss_by_source(losses, {"target_ids": batch["target_ids"]}, NUM_SOURCES)
    rows = batch_of("gapless", random.Random(1))
    del rows["position_ids"]
    with pytest.raises(ValueError, match="where documents begin"):
        loss_by_source(torch.rand(rows["input_ids"].shape), rows, NUM_SOURCES)
    rows = filled(random.Random(1))
    del rows["target_ids"]
    with pytest.raises(ValueError, match=r"'loss_mask' or 'target_ids' beside 'cu_seqlens_padded'.*\n.* padding"):
        loss_by_source(torch.rand(rows["input_ids"].shape), rows, NUM_SOURCES)
    padded = next(batch for seed in range(99) if -1 in (batch := rows_apart(random.Random(seed), "drop"))["expected"])
    with pytest.raises(ValueError, match=r"where 'position_ids' is 0, got .*\n.* padding"):
        loss_by_source(torch.rand(padded["input_ids"].shape), padded, NUM_SOURCES)


def test_a_mask_without_targets_is_of_the_tokens_themselves() -> None:
    """As of chats: each trained token is the target of the one before it, in its document."""
    row = packed(random.Random(3))[0]
    del row["target_ids"]
    row["loss_mask"] = torch.rand(row["input_ids"].shape) < 0.5
    row["loss_mask"][0] = True  # nothing predicts it
    batch = TensorCollate()([row])
    losses = torch.rand(batch["input_ids"].shape)
    sums, counts = loss_by_source(losses, batch, NUM_SOURCES)
    want, number = torch.zeros(2, NUM_SOURCES, dtype=torch.float64), batch["source_ids"].tolist()
    for source, (begin, end) in zip(number, pairwise(batch["cu_seqlens"].tolist()), strict=True):
        for at in range(begin, end - 1):
            if row["loss_mask"][at + 1]:
                want[:, source] += torch.tensor([losses[at], 1.0], dtype=torch.float64)
    torch.testing.assert_close(torch.stack([sums, counts]), want)


def test_sources_of_a_model_that_shifts_labels_have_its_loss_together() -> None:
    """As the examples give them, whatever mask the batch has: the 0 that pads a row's losses does not count."""
    examples = Path(__file__).parents[2] / "examples" / "trainers" / "tiny.py"
    with_targets = runpy.run_path(str(examples))["with_targets"]
    for seed in range(12):
        batch = batch_of("gapless", random.Random(seed))
        shape = batch["input_ids"].shape
        labels = batch["target_ids"].masked_fill(torch.rand(shape) < 0.3, -100)
        batch |= {"loss_mask": torch.rand(shape) < 0.5, "labels": labels}
        losses = torch.rand(len(labels), shape[1] - 1, dtype=torch.float64)
        is_trained = labels[:, 1:] != -100
        sums, counts = loss_by_source(torch.nn.functional.pad(losses, (0, 1)), with_targets(batch), NUM_SOURCES)
        assert counts.sum() == is_trained.sum()
        torch.testing.assert_close(sums.sum(), losses[is_trained].sum())


def test_a_document_of_no_source_does_not_count() -> None:
    """Whatever its mask says."""
    batch = {"target_ids": torch.arange(5), "source_ids": torch.tensor([0, -1]), "cu_seqlens": torch.tensor([0, 3, 5])}
    sums, counts = loss_by_source(torch.ones(5), batch, 2)
    assert (sums.tolist(), counts.tolist()) == ([3, 0], [3, 0])


@pytest.mark.parametrize("joined", [False, True])
def test_what_only_fills_a_batch_up_does_not_count(joined) -> None:
    """Samples that `uneven="pad"` repeats, within a batch and as a whole one; and joined rows of several lengths."""
    sizes, counted = [4, 3, 2, 4, 1, 3, 4], 0.0

    rows = [{"input_ids": torch.ones(size), "target_ids": torch.ones(size)} for size in sizes]
    if joined:
        rows = [{**row, "cu_seqlens": torch.tensor([0, size])} for row, size in zip(rows, sizes, strict=True)]
    pads = {} if joined else {"input_ids": Pad(), "target_ids": Pad(value=-100)}
    for rank in range(2):
        dataset = MergedDataset([named(rows, name="a", percent=1)], cyclic=False, seed=3)
        dataset.set_data_parallel(2, rank)
        for batch in StreamLoader(dataset, 2, collate=TensorCollate(pads), uneven="pad"):
            counted += loss_by_source(torch.ones(batch["input_ids"].shape), batch, 1)[1].item()
    assert counted == sum(sizes)
