import numpy as np
import pytest
import torch

from streamdata.chats.prompts import prompt_collate


def test_tensors_of_one_shape_are_stacked():
    """And keep their dtype."""
    batch = prompt_collate([{"ids": torch.arange(4) + row} for row in range(3)])
    assert batch["ids"].tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert batch["ids"].dtype == torch.int64


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        ["a", None],
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        [{"a": 1}, {}],
        [np.zeros((2, 2)), np.ones((2, 2))],
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(2), None],
    ],
    ids=repr,
)
def test_all_else_becomes_an_array_of_objects(values):
    """Of the batch's length, each object as it was, even lists and arrays of one length."""
    column = prompt_collate([{"x": value} for value in values])["x"]
    assert (column.dtype, column.shape) == (np.dtype(object), (2,))
    assert all(found is value for found, value in zip(column, values, strict=True))


def test_a_missing_key_is_an_error_unless_declared():
    """In any row; rows never move up to fill the gap."""
    for rows in ([{"x": 1, "y": 1}, {"x": 2}], [{"x": 2}, {"x": 1, "y": 1}]):
        with pytest.raises(ValueError, match=r"'y' in every sample, got sample [01] without"):
            prompt_collate(rows)
    assert prompt_collate([{"x": 2}, {"x": 1, "y": 7}], fill={"y": None})["y"].tolist() == [None, 7]


def test_an_empty_batch_is_an_error():
    """There is nothing that says which keys it has."""
    with pytest.raises(ValueError, match="at least one sample"):
        prompt_collate([])
