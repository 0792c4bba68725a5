from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamdata.chats.encoding import RopeRule, VisualGrid, read_grids, rope_rule
from tests.sources.tiny_processors import tiny_qwen2_vl_model

IMAGE, VIDEO = 90, 91
RULE = RopeRule({"image": IMAGE, "video": VIDEO}, merge_size=2)
SIDE = st.sampled_from([2, 4, 6, 8])
GRID = st.one_of(
    st.builds(lambda h, w: ("image", (1, h, w)), SIDE, SIDE),
    st.builds(lambda t, h, w: ("video", (t, h, w)), st.integers(1, 5), SIDE, SIDE),
)


def sequence(grids, texts):
    """Text and media by turns, as token ids."""
    ids = [1] * texts[0]
    for (kind, (t, h, w)), length in zip(grids, texts[1:], strict=True):
        ids += [RULE.token_ids[kind]] * (t * h * w // 4) + [1] * length
    return np.array(ids, dtype=np.int64)


def by_model(model, ids, grids, **more):
    """The positions that a model of transformers computes; it needs its config alone."""
    ids = torch.from_numpy(ids)[None]
    types = torch.where(ids == IMAGE, 1, torch.where(ids == VIDEO, 2, 0))
    grids = {
        f"{kind}_grid_thw": torch.tensor([grid for own, grid in grids if own == kind] or [[0, 0, 0]])
        for kind in ("image", "video")
    }
    return model.get_rope_index(ids, types, **grids, attention_mask=torch.ones_like(ids), **more)[0][:, 0]


class Bare:
    """A model of transformers without weights, by its module and class: what `get_rope_index` looks at."""

    def __init__(self, name, **config):
        module, kind = name.split(".")
        models = "transformers.models"  # imported here: they take three seconds
        self._kind = getattr(import_module(f"{models}.{module}.modeling_{module}"), kind)
        qwen2_5_vl = import_module(f"{models}.qwen2_5_vl.configuration_qwen2_5_vl")
        self.config = qwen2_5_vl.Qwen2_5_VLConfig(**config)

    def __getattr__(self, name):
        return getattr(self._kind, name).__get__(self)


@given(st.lists(GRID, max_size=4), st.lists(st.integers(1, 5), min_size=5, max_size=5))
def test_positions_are_those_of_qwen2_vl(grids, texts):
    """Whatever follows whatever, with text between."""
    ids = sequence(grids, texts[: len(grids) + 1])
    expected = by_model(Bare("qwen2_vl.Qwen2VLModel"), ids, grids)
    found = RULE.positions(ids, [VisualGrid(kind, grid) for kind, grid in grids])
    assert found.tolist() == expected.tolist()


@given(st.lists(GRID, max_size=3), st.sampled_from([0.5, 1.0, 1.7]))
def test_qwen2_5_vl_counts_seconds(grids, seconds):
    """Frames lie apart in time as the processor says."""
    model = Bare("qwen2_5_vl.Qwen2_5_VLModel", vision_config={"tokens_per_second": 2})
    ids = sequence(grids, [2] * (len(grids) + 1))
    times = torch.tensor([seconds] * len(grids))
    expected = by_model(model, ids, grids, second_per_grid_ts=times)
    features = {f"{kind}_grid_thw": [grid for own, grid in grids if own == kind] for kind in ("image", "video")}
    visual = read_grids([kind for kind, _ in grids], {**features, "second_per_grid_ts": times})
    assert RULE.positions(ids, visual).tolist() == expected.tolist()


def test_qwen3_vl_writes_frames_one_by_one():
    """With the time between them as text."""
    grids = [("video", (3, 4, 4)), ("image", (1, 2, 4))]
    ids = np.array([1, *[1, *[VIDEO] * 4] * 3, 1, IMAGE, IMAGE, 1], dtype=np.int64)
    expected = by_model(Bare("qwen3_vl.Qwen3VLModel"), ids, grids)
    assert RULE.positions(ids, [VisualGrid(*grid) for grid in grids]).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("ids", "grids"),
    [
        ([1, IMAGE, 1], []),
        ([1, 1], [("image", (1, 2, 2))]),
        ([IMAGE], [("image", (1, 2, 4))]),
        ([IMAGE, 1, IMAGE], [("image", (1, 2, 4))]),
        ([VIDEO], [("image", (1, 2, 2))]),
    ],
)
def test_tokens_that_do_not_fit_the_grids_are_an_error(ids, grids):
    """Too few, too many, torn apart, or of another kind."""
    with pytest.raises(ValueError, match="as its grid says"):
        RULE.positions(np.array(ids, dtype=np.int64), [VisualGrid(*grid) for grid in grids])


def test_the_rule_is_read_from_the_processor(qwen, llava):
    """Of one that is like Qwen2-VL's; others count tokens."""
    assert rope_rule(qwen) == RopeRule({"image": qwen.image_token_id, "video": qwen.video_token_id}, 2)
    assert rope_rule(llava) is None
    assert rope_rule(None) is None


def test_the_tiny_model_has_the_same_rule(qwen):
    """The one that takes whole batches in the tests of the dataset."""
    model = tiny_qwen2_vl_model(qwen)
    assert model.config.vision_config.spatial_merge_size == RULE.merge_size
