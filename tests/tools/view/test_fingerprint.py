import pickle
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from streamdata.tools.view.exactness import fingerprint

VALUES = [
    None,
    True,
    1,
    1.0,
    0.0,
    -0.0,
    "1",
    b"1",
    [1, 2],
    (1, 2),
    [12],
    [[1], 2],
    {"a": 1},
    {"a": 2},
    {"b": 1},
    {1, 2},
    torch.tensor([1, 2]),
    torch.tensor([[1, 2]]),
    torch.tensor([1, 2], dtype=torch.int32),
    torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
    torch.tensor(1),
    np.array([1, 2]),
    np.array([1, 3]),
    np.int64(1),
    np.array(["a", None], dtype=object),
    Image.new("L", (2, 2), 0),
    Image.new("L", (2, 2), 1),
    Image.new("L", (4, 1), 0),
    range(3),
]


def test_different_contents_have_different_digests() -> None:
    """Of type, dtype and shape too."""
    digests = [fingerprint({"x": value})["x"] for value in VALUES]
    assert len(set(digests)) == len(VALUES)


@pytest.mark.parametrize("value", VALUES)
def test_equal_contents_have_equal_digests(value: object) -> None:
    """Of a copy that was pickled, as a sample from a worker is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch 2.4, about how it pickles tensors itself
        copied = pickle.loads(pickle.dumps(value))
    assert fingerprint({"x": value}) == fingerprint({"x": copied})


def test_order_of_keys_and_strides_are_no_content() -> None:
    """A transposed tensor equals its row-major copy."""
    turned = torch.arange(6).reshape(2, 3).T
    left, right = {"a": 1, "b": turned}, {"b": turned.contiguous(), "a": 1}
    assert fingerprint({"x": left}) == fingerprint({"x": right})
    assert fingerprint({"x": torch.ones(1, 4)[:, 0]}) == fingerprint({"x": torch.ones(1)})


def test_private_fields_are_left_out_and_the_others_kept() -> None:
    """The cursor tells of the run, the url of the sample."""
    assert fingerprint({"__cursor__": (), "__states__": (), "__url__": "x"}).keys() == {"__url__"}


def test_what_cannot_be_pickled_counts_by_its_type() -> None:
    """A function made on the spot is no reason to fail."""
    assert fingerprint({"x": lambda: 1}) == fingerprint({"x": lambda: 2})
