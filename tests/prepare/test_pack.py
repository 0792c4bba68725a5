from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdata.prepare import load_config, output
from streamdata.prepare.documents import Tokens
from streamdata.prepare.output import Block, Packer
from streamdata.text.packing import positions

PADDING = 9999
ROW = 8
MASKED = {"train_type": "sft", "sections": [{"field": "t", "action": "train"}]}
LENGTHS = st.lists(st.integers(1, 8), max_size=40)
LONG_LENGTHS = st.lists(st.integers(1, 30), max_size=20)


def pack(lengths: list[int], packing: str, portions: int = 1, **options: object) -> tuple[list[Block], Counter]:
    """The blocks of documents of these lengths: ids count up over all of them, every third token is not trained."""
    config = MASKED | {"packing": packing, **options}
    if packing != "none":
        config |= {"max_packed_len": ROW} | ({"max_seq_len": ROW} if packing == "bfd" else {})
    counts: Counter = Counter()
    packer = Packer(load_config(config), PADDING, counts)
    ends = np.cumsum(lengths) if lengths else np.zeros(0, int)
    found = [np.arange(end - size, end, dtype=np.uint32) for end, size in zip(ends, lengths, strict=True)]
    documents = [Tokens(ids, ids % 3 != 0) for ids in found]
    blocks = [block for number in range(portions) for block in packer.add(documents[number::portions])]
    return blocks + list(packer.finish()), counts


def pieces(blocks: list[Block]) -> list[list[int]]:
    """The documents in rows, padding left out, after a check of rows and their boundaries."""
    found = []
    for block in blocks:
        assert (block.lengths == ROW).all()
        assert block.documents.sum() == block.lengths.sum() == len(block.flat["sequence"])
        ends = np.cumsum(block.documents)
        assert set(np.cumsum(block.lengths)) <= set(ends)
        for begin, end in zip(ends - block.documents, ends, strict=True):
            ids, mask = block.flat["sequence"][begin:end], block.flat["loss_mask"][begin:end]
            assert (block.flat["position_ids"][begin:end] == np.arange(end - begin)).all()
            if ids[0] == PADDING:
                assert (ids == PADDING).all()
                assert not mask.any()
            else:
                assert (mask[1:] == (ids[1:] % 3 != 0)).all()
                assert not mask[0] or ids[0] % 3
                found.append(ids.tolist())
    return found


@given(lengths=LENGTHS)
def test_bfd_keeps_documents_whole(lengths: list[int]) -> None:
    """Each is in one row, once, with its own mask and positions."""
    blocks, counts = pack(lengths, "bfd")
    found = sorted(pieces(blocks))
    ends = np.cumsum([0, *lengths]).tolist()
    assert found == [list(range(begin, end)) for begin, end in pairwise(ends)]
    assert counts["documents_cut"] == 0
    assert counts["trained"] == sum(token % 3 != 0 for token in range(sum(lengths)))
    assert counts["tokens"] + counts["padding"] == counts["rows"] * ROW


@given(lengths=LONG_LENGTHS, packing=st.sampled_from(["simple", "bfd_split"]))
def test_cut_documents_lose_no_token(lengths: list[int], packing: str) -> None:
    """Each token once, and in its order inside a piece; no piece has tokens of two documents."""
    blocks, counts = pack(lengths, packing)
    found = sorted(pieces(blocks))
    assert [token for piece in found for token in piece] == list(range(sum(lengths)))
    ends = set(np.cumsum([0, *lengths]).tolist())
    assert all(not ends & set(range(piece[0] + 1, piece[-1] + 1)) for piece in found)
    assert counts["padding"] == counts["rows"] * ROW - sum(lengths)
    assert counts["trained"] == sum(int(block.flat["loss_mask"].sum()) for block in blocks)


@given(lengths=LENGTHS)
def test_without_packing_documents_come_as_they_are(lengths: list[int]) -> None:
    """One after another, in no rows."""
    blocks, counts = pack(lengths, "none")
    assert [token for block in blocks for token in block.flat["sequence"]] == list(range(sum(lengths)))
    assert [length for block in blocks for length in block.lengths] == lengths
    assert all(block.documents is None for block in blocks)
    assert (counts["sequences"], counts["rows"]) == (len(lengths), 0)


@pytest.mark.parametrize("packing", ["simple", "bfd_split"])
def test_a_piece_does_not_train_its_first_token(packing: str) -> None:
    """Unless it begins its document: nothing of it predicts that token; what is trained as a whole stays so."""
    (block,), counts = pack([13, 11], packing)
    continued = (block.flat["sequence"] != PADDING) & (block.flat["position_ids"] == 0)
    continued &= ~np.isin(block.flat["sequence"], [0, 13])
    assert continued.sum() >= 2
    expected = (block.flat["sequence"] % 3 != 0) & ~continued & (block.flat["sequence"] != PADDING)
    assert block.flat["loss_mask"].tolist() == expected.tolist()
    assert counts["trained"] == expected.sum()
    packer = Packer(load_config(MASKED | {"packing": packing, "max_packed_len": ROW}), PADDING, Counter())
    list(packer.add([Tokens(np.arange(24, dtype=np.uint32), np.ones(24, np.bool_))]))
    (block,) = packer.finish()
    assert block.flat["loss_mask"].all()


def test_large_tasks_are_packed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory is bounded; blocks of rows are small too."""
    monkeypatch.setattr(output, "MAX_HELD", 20)
    monkeypatch.setattr(output, "BLOCK_TOKENS", 16)
    blocks, counts = pack([5] * 30, "simple", portions=15)
    assert sorted(token for piece in pieces(blocks) for token in piece) == list(range(150))
    assert max(len(block.lengths) for block in blocks) == 2
    assert counts["rows"] == 7 * 3 + 2  # groups of four documents in three rows each, the last of two in two


def test_continuous_positions_run_through_the_row() -> None:
    """Over documents and padding."""
    (block,), _ = pack([3, 3, 5], "bfd", position_ids="continuous")
    assert block.flat["position_ids"].tolist() == [*range(8), *range(8)]
    (block,), _ = pack([3, 2], "none", position_ids="continuous")
    assert block.flat["position_ids"].tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("packing", ["simple", "bfd", "bfd_split"])
def test_pretraining_rows_have_no_padding(packing: str) -> None:
    """Nothing masks it there: rows follow one another, and records are the documents in them, in their order."""
    blocks, counts = pack([3, 7, 6, 4], packing, train_type="seq", position_ids="doc_reset")
    (block,) = blocks
    assert sorted(block.flat["sequence"].tolist()) == list(range(20))
    begins = np.cumsum(block.lengths) - block.lengths
    assert (block.flat["position_ids"][begins] == 0).all()
    assert (block.lengths.sum(), block.documents, counts["padding"]) == (20, None, 0)
    if packing == "bfd":
        assert block.flat["sequence"][begins].tolist() == [0, 16, 3, 10]
        (block,), _ = pack([3, 7, 6, 4], packing, train_type="seq", position_ids="continuous")
        assert block.flat["position_ids"].tolist() == [*range(7), *range(7), *range(6)]


def test_positions_restart() -> None:
    """At each length."""
    assert positions(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
    assert positions(np.zeros(0, np.int64)).tolist() == []
