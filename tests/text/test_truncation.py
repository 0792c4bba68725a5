import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamdata.text.truncation import (
    TRUNCATIONS,
    OverlongError,
    compute_position_id_with_mask,
    cut,
    fit_length,
    pad_sequence_to_length,
    postprocess_data,
    train_from,
)

IDS = [1, 2, 3, 4, 5, 6, 7]


def processed(ids, limit, truncation, left_pad=True):
    """One row's ids and mask as lists."""
    ids = torch.tensor([ids])
    got = postprocess_data(ids, torch.ones_like(ids), limit, 0, left_pad, truncation)
    assert all(tensor.dtype == torch.int64 and tensor.shape == (1, limit) for tensor in got)
    return [tensor[0].tolist() for tensor in got]


@pytest.mark.parametrize(
    ("truncation", "limit", "expected"),
    [
        ("left", 4, [4, 5, 6, 7]),
        ("left", 1, [7]),
        ("right", 4, [1, 2, 3, 4]),
        ("right", 1, [1]),
        ("middle", 4, [1, 2, 6, 7]),
        ("middle", 5, [1, 2, 5, 6, 7]),
        ("middle", 1, [7]),
    ],
)
def test_a_long_row_is_cut_as_asked(truncation, limit, expected):
    """The last N, the first N, or N//2 from the front and the rest from the end; odd N and N = 1 too."""
    assert processed(IDS, limit, truncation) == [expected, [1] * limit]


@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_a_row_of_the_length_stays(truncation):
    """Nothing is cut and nothing is padded, whatever the truncation."""
    assert processed(IDS, 7, truncation) == [IDS, [1] * 7]


@pytest.mark.parametrize("truncation", TRUNCATIONS)
def test_a_short_row_is_padded_on_the_side_asked_for(truncation):
    """The attention mask is 0 at padding."""
    assert processed([1, 2], 4, truncation) == [[0, 0, 1, 2], [0, 0, 1, 1]]
    assert processed([1, 2], 4, truncation, left_pad=False) == [[1, 2, 0, 0], [1, 1, 0, 0]]


def test_a_batch_keeps_its_rows_and_the_masks_own_values():
    """Rows do not mix, and the mask is cut where the ids are."""
    ids = torch.arange(12).reshape(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6], dtype=torch.int32)
    ids, mask = postprocess_data(ids, mask, 4, 0, truncation="middle")
    assert ids.tolist() == [[0, 1, 4, 5], [6, 7, 10, 11]]
    assert mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert mask.dtype == torch.int32


def test_an_error_says_length_limit_and_row():
    """Nothing is cut unless asked for."""
    ids = torch.ones(2, 7, dtype=torch.int64)
    mask = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [1] * 7])
    with pytest.raises(ValueError, match="at most 4 tokens, got 7\n") as caught:
        postprocess_data(ids, mask, 4, 0)
    assert "row 1 of a batch of 2" in caught.value.__notes__[0]


@pytest.mark.parametrize("limit", [0, -1, True, 2.0])
def test_a_limit_below_one_is_an_error(limit):
    """Also for rows that need no cut."""
    with pytest.raises(ValueError, match=r"max_length is .*at least 1\n"):
        postprocess_data(torch.ones(1, 2), torch.ones(1, 2), limit, 0, truncation="left")
    with pytest.raises(ValueError, match=r"max_length is .*at least 1\n"):
        cut(2, limit, "left")
    with pytest.raises(ValueError, match=r"max_length is .*at least 1\n"):
        fit_length(np.array([True]), limit, "drop")


def test_an_unknown_truncation_is_an_error_with_the_nearest():
    """A misspelt one must not pass for another."""
    with pytest.raises(ValueError, match=r"'midle', .*, did you mean 'middle'"):
        postprocess_data(torch.ones(1, 2), torch.ones(1, 2), 3, 0, truncation="midle")
    with pytest.raises(ValueError, match=r"'truncate_lft', .*, did you mean 'truncate_left'"):
        fit_length(np.array([True]), 3, "truncate_lft")


@pytest.mark.parametrize("mask_shape", [(2,), (1, 3)])
def test_shapes_that_do_not_match_are_an_error(mask_shape):
    """Both are (batch, seq)."""
    with pytest.raises(ValueError, match="one shape"):
        postprocess_data(torch.ones(1, 2), torch.ones(mask_shape), 3, 0)


def test_padding_a_sequence_leaves_a_long_one_alone():
    """Any leading dimensions, right by default."""
    rows = torch.ones(3, 1, 2)
    assert pad_sequence_to_length(rows, 3, 9)[0, 0].tolist() == [1, 1, 9]
    assert pad_sequence_to_length(rows, 3, 9, left_pad=True)[0, 0].tolist() == [9, 1, 1]
    assert pad_sequence_to_length(rows, 1, 9).shape == (3, 1, 2)


def test_positions_count_the_tokens():
    """From 0, and 0 at the padding on the left."""
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert compute_position_id_with_mask(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


@given(st.integers(0, 30), st.integers(1, 30), st.sampled_from(["left", "right", "middle"]), st.data())
def test_a_cut_never_leaves_half_a_span(length, limit, truncation, data):
    """Spans stay whole or go; the rest is what the truncation of the bare ids keeps."""
    edges = sorted(data.draw(st.sets(st.integers(0, length), max_size=6)))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    kept, lost = cut(length, limit, truncation, spans)
    if length == 0:
        assert not len(kept)
        return
    whole = postprocess_data(torch.arange(length)[None], torch.ones(1, length), limit, -1, truncation=truncation)[0][0]
    bare = {position for position in whole.tolist() if position >= 0}
    broken = [number for number, span in enumerate(spans) if not set(range(*span)) <= bare]
    assert list(lost) == broken
    assert kept.tolist() == sorted(bare - {position for number in broken for position in range(*spans[number])})


def test_a_span_outside_the_sequence_is_an_error():
    """Spans of another sequence would cut the wrong tokens."""
    with pytest.raises(ValueError, match="span 0 is 2:9, expected one inside 7 tokens"):
        cut(7, 4, "left", [(2, 9)])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("drop", "too_long"), ("truncate_left", slice(3, 6)), ("truncate_right", slice(0, 3))],
)
def test_a_long_sample_is_dropped_or_cut(policy, expected):
    """By the policy; one that fits stays whole."""
    train = np.array([False, False, True, True, True, False])
    assert fit_length(train, 3, policy) == expected
    assert fit_length(train, 6, policy) == slice(0, 6)
    assert fit_length(train, None, policy) == slice(0, 6)


def test_a_cut_never_leaves_a_sample_with_nothing_to_train():
    """It is dropped, with that reason; so is one that had nothing before."""
    train = np.array([False, False, True, False, False, False])
    assert fit_length(train, 2, "truncate_right") == "nothing_to_train"
    assert fit_length(train, 2, "truncate_left") == "nothing_to_train"
    assert fit_length(train[:2], 4, "drop") == "nothing_to_train"
    assert fit_length(train[:0], None, "drop") == "nothing_to_train"


def test_a_long_sample_is_an_error_on_request():
    """With length and limit."""
    with pytest.raises(OverlongError, match="at most 3 tokens, got 6"):
        fit_length(np.ones(6, dtype=bool), 3, "error")


def test_a_piece_does_not_train_its_first_token():
    """Nothing is left to predict it from; the first of the document itself, and plain text, stay as they are."""
    train = np.array([True, False, True, True])
    assert train_from(train, 0).tolist() == train.tolist()
    assert train_from(train, 2).tolist() == [True, False, False, True]
    assert train_from(np.ones(4, dtype=bool), 2).all()
    assert train.tolist() == [True, False, True, True]


def test_a_first_token_alone_is_nothing_to_train():
    """Where the cut makes it the first."""
    train = np.array([False, False, True, False])
    assert fit_length(train, 2, "truncate_left") == "nothing_to_train"
    assert fit_length(train, 3, "truncate_left") == slice(1, 4)
    assert fit_length(np.ones(4, dtype=bool), 1, "truncate_left") == slice(3, 4)
