"""Slices for context parallelism: those of TransformerEngine and Megatron, and what their losses add up to."""

import random
from bisect import bisect_right

import pytest
import torch

from streamdata import PackTokens, Pad, TensorCollate, context_slice, loss_by_source
from tests.delivery.test_losses import NUM_SOURCES, gapless, sample


def thd_partitioned_indices(bounds: list[int], num_tokens: int, size: int, rank: int) -> list[int]:
    """TransformerEngine's rule: `thd_partition_indices_kernel` of `common/fused_attn/context_parallel.cu` at 045b8483.

    It halves a rank's tokens of each sequence; those of the first half lie `rank` halves on from its begin, the others
    `2 * (size - 1) - rank`.
    """
    own, found = [bound // size for bound in bounds], []
    for token in range(num_tokens // size):
        document = bisect_right(own, token, 1, len(own) - 1) - 1
        length, place = own[document + 1] - own[document], token - own[document]
        halves = rank if place < length // 2 else 2 * (size - 1) - rank
        found.append(own[document] * size + place + length // 2 * halves)
    return found


def megatron_slice(batch: dict[str, torch.Tensor], size: int, rank: int) -> dict[str, torch.Tensor]:
    """Megatron's rule: `get_batch_on_this_cp_rank` of `megatron/core/utils.py` at 00611e6e, without packed sequences.

    The sequence axis, 2 of `attention_mask` and 1 of all others, is seen as `2 * size` chunks, of which two are taken.
    """
    found = {}
    for name, value in batch.items():
        axis = 2 if name == "attention_mask" else 1
        chunks = value.unflatten(axis, (2 * size, -1))
        found[name] = chunks.index_select(axis, torch.tensor([rank, 2 * size - 1 - rank])).flatten(axis, axis + 1)
    return found


def joined(rng: random.Random, size: int, **collate: bool) -> dict:
    """Rows of documents that are padded for a group of this size, joined."""
    documents = [sample(rng, rng.randint(1, 30)) for _ in range(rng.randint(1, 12))]
    packer = PackTokens(
        16 * size, 9, longer="split", document_multiple=2 * size, row_multiple=rng.choice([1, 8 * size])
    )
    return TensorCollate(**collate)(list(packer(documents)))


def test_slices_of_documents_are_those_of_transformer_engine() -> None:
    """On 200 random batches, of groups of up to eight; positions of several axes too."""
    for seed in range(200):
        rng = random.Random(seed)
        size = rng.randint(2, 8)
        batch = joined(rng, size)
        batch["position_ids"] = torch.stack([batch["position_ids"] + axis for axis in range(rng.choice([3, 4]))])
        bounds, rank = batch["cu_seqlens_padded"], rng.randrange(size)
        found = context_slice(batch, rank, size)
        places = thd_partitioned_indices(bounds.tolist(), len(batch["input_ids"]), size, rank)
        for name in ("input_ids", "target_ids", "position_ids"):
            assert torch.equal(found[name], batch[name][..., places])
        for name in ("cu_seqlens", "cu_seqlens_padded", "source_ids", "record_ids"):
            assert found[name] is batch[name]
        assert (found["cu_seqlens_local"].dtype, found["max_seqlen"]) == (torch.int32, int(bounds.diff().max()))
        assert torch.equal(found["cu_seqlens_local"] * size, bounds)


def test_slices_of_rows_are_those_of_megatron() -> None:
    """On 200 random batches, with a mask of all pairs in every second one."""
    for seed in range(200):
        rng = random.Random(seed)
        size, num_rows, length = rng.randint(2, 8), rng.randint(1, 3), rng.randint(1, 3)
        shape = (num_rows, 2 * size * length)
        batch = {name: torch.randint(99, shape) for name in ("tokens", "target_ids", "loss_mask", "position_ids")}
        if seed % 2:
            batch["attention_mask"] = torch.rand(num_rows, 1, shape[1], shape[1]) < 0.5
        rank = rng.randrange(size)
        found = context_slice(batch, rank, size, per_document=False)
        wanted = megatron_slice(batch, size, rank)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def assert_losses_add_up(batch: dict, size: int, **options: bool) -> None:
    """The sums of all slices are those of the whole batch."""
    losses = torch.rand(batch["input_ids"].shape)
    slices = [context_slice({**batch, "losses": losses}, rank, size, **options) for rank in range(size)]
    found = sum(torch.stack(loss_by_source(one["losses"], one, NUM_SOURCES)) for one in slices)
    torch.testing.assert_close(found, torch.stack(loss_by_source(losses, batch, NUM_SOURCES)))


def test_losses_of_slices_add_up() -> None:
    """Of documents, weighted in every second batch; of rows without gaps, and of padded rows kept apart."""
    for seed in range(6):
        rng = random.Random(seed)
        size = rng.randint(1, 4)
        assert_losses_add_up(joined(rng, size, loss_weights=bool(seed % 2)), size)
        assert_losses_add_up(TensorCollate()(gapless(rng)), rng.choice([1, 2, 3]), per_document=False)
        rows = list(PackTokens(16)([sample(rng, rng.randint(1, 9)) for _ in range(9)]))
        fields = {name: Pad(-100, multiple_of=8) for name in ("input_ids", "target_ids", "position_ids")}
        assert_losses_add_up(TensorCollate({**fields, "cu_seqlens": "list"})(rows), 4, per_document=False)


def test_all_other_fields_stay() -> None:
    """Also a tensor that is as wide as there are tokens; a group of one takes all, of any length."""
    batch = {"input_ids": torch.arange(8), "cu_seqlens": torch.tensor([0, 8]), "__state__": "s", "text": ["a"]}
    batch["pixels"] = torch.rand(5, 8)
    found = context_slice(batch, 1, 2)
    assert found["input_ids"].tolist() == [2, 3, 4, 5]
    assert type(found["max_seqlen"]) is int
    assert all(found[name] is batch[name] for name in ("__state__", "text", "pixels"))
    batch = {"input_ids": torch.arange(5), "labels": torch.arange(5), "cu_seqlens": torch.tensor([0, 2, 5])}
    one = context_slice(batch, 0, 1)
    assert one["labels"].tolist() == [*range(5)]
    assert one["cu_seqlens_local"].tolist() == [0, 2, 5]


IDS, BOUNDS = torch.arange(8), torch.tensor([0, 8])


def test_what_is_of_documents_stays_where_each_is_a_token() -> None:
    """Though it has the shape of the tokens."""
    row = {"input_ids": IDS, "source_ids": torch.arange(8), "position_ids": torch.zeros(8)}
    found = context_slice(row, 1, 2, per_document=False)
    assert found["source_ids"] is row["source_ids"]
    assert found["cu_seqlens_local"].tolist() == [0, 0, 0, 1, 2, 3, 4, 4, 4]


ROWS = {"input_ids": IDS.view(2, 4)}
REFUSED = [
    ({}, {"layout": "contiguous"}, "expected the layout 'zigzag', got 'contiguous'"),
    ({}, {"rank": 2}, "expected a rank from 0 to size - 1, got rank 2 of size 2"),
    ({}, {"size": 0}, "got rank 0 of size 0"),
    ({}, {"rank": True}, "got rank True of size 2"),
    ({}, {"size": 2.0}, "got rank 0 of size 2.0"),
    ({"input_ids": torch.tensor(8)}, {}, "expected a whole batch"),
    ({"input_ids": [1, 2]}, {}, r"a tensor under one of \('input_ids', 'tokens'\), got \['cu_seqlens', 'input_ids'\]"),
    ({"cu_seqlens_local": BOUNDS}, {}, "expected a whole batch .*\n.* slice once"),
    ({"labels": IDS}, {}, "expected 'target_ids' beside 'labels'.*\n.*target_ids=ids"),
    ({"loss_mask": IDS}, {"per_document": False}, "expected 'target_ids' beside 'loss_mask'"),
    ({"cu_seqlens": torch.tensor([0, 4, 6, 8])}, {}, "each document to have a multiple of 4 .* got 2 in document 1\n"),
    ({}, {"size": 3, "per_document": False}, r"each row to have a multiple of 6 .* got 8 in row 0\n.*multiple_of=6"),
    ({"cu_seqlens": torch.tensor([0, 4])}, {}, "'cu_seqlens' to end at the last of 8 tokens, got 4\n.*row_multiple="),
    (
        {"cu_seqlens": [BOUNDS]},
        {},
        "expected joined rows with 'cu_seqlens', got .* shape \\(8,\\)\n.*per_document=False",
    ),
    ({"cu_seqlens": BOUNDS.view(1, 2)}, {}, "expected joined rows with 'cu_seqlens', got .* shape \\(8,\\)"),
    (ROWS, {}, "expected joined rows with 'cu_seqlens', got .* shape \\(2, 4\\)"),
    ({"attention_mask": torch.ones(8, 1, 8, 8)}, {}, r"'attention_mask' .* got \(8, 1, 8, 8\)\n"),
    ({"attention_mask": torch.ones(8, 8)}, {}, r"'attention_mask' to have the shape \(8,\) .* got \(8, 8\)\n"),
    (ROWS | {"attention_mask": torch.ones(2, 4, 4)}, {"per_document": False}, r"shape \(2, 4\) .* got \(2, 4, 4\)"),
    (ROWS | {"attention_mask": torch.ones(2, 2, 4, 4)}, {"per_document": False}, r"got \(2, 2, 4, 4\)"),
    ({"position_ids": torch.ones(1, 3, 8)}, {}, r"'position_ids' to have the shape .* got \(1, 3, 8\)\n"),
    (ROWS | {"position_ids": torch.ones(2, 1, 4, 4)}, {"per_document": False}, r"'position_ids' .* got \(2, 1, 4, 4\)"),
]


@pytest.mark.parametrize(("fields", "options", "message"), REFUSED)
def test_what_cannot_be_sliced_is_refused(fields, options, message) -> None:
    """With what was expected, what came and what to do."""
    batch = {"input_ids": IDS, "cu_seqlens": BOUNDS, **fields}
    with pytest.raises(ValueError, match=f"context_slice: .*{message}"):
        context_slice(batch, **{"rank": 0, "size": 2, **options})


@pytest.mark.parametrize("batch", [[{"input_ids": IDS}], {"input_ids": IDS}])
def test_a_batch_without_bounds_is_refused(batch) -> None:
    """As are samples that were not collated."""
    with pytest.raises(ValueError, match=r"expected (joined rows with 'cu_seqlens'|a whole batch .* got list)"):
        context_slice(batch, 0, 2)
