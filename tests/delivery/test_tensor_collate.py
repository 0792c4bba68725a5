"""Batches as a dict of tensors: what becomes of each kind of value, what is refused, and the state that they keep."""

import pickle
import warnings
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, default_collate

from streamdata import (
    MergedDataset,
    Pad,
    StateError,
    TensorCollate,
    instantiate_from_yaml,
    mixed_collate,
    to_float,
    to_state,
)
from streamdata.delivery import collate, tensor_collate
from streamdata.recipe.check import check_recipe
from tests.delivery.test_collate import Samples, through_pinning_loop
from tests.streams import Numbers, raises_in_worker, through_json

NAMED = SimpleNamespace(a="one source", b="another")


class Rows(Numbers):
    """Row i has 1 to 5 tokens, all i."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.full((1 + index % 5,), index)
        return {"tokens": tokens, "number": index, "text": str(index), "__url__": "of its source"}


class OtherFields(Numbers):
    """Its samples have a field that others lack."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"caption": str(index)}


def rows() -> MergedDataset:
    """Of two sources."""
    return MergedDataset([Rows("a", 40, 3), Rows("b/c d", 9)])


def two_kinds() -> MergedDataset:
    """Two sources with different fields."""
    return MergedDataset([Numbers("a", 40), OtherFields("b", 40)])


PADDED = TensorCollate(fields={"tokens": Pad(value=-1, multiple_of=4)})


def batches(dataset: Any, num_workers: int = 0, collate_fn: Any = PADDED, **options: Any) -> Iterator[Any]:
    """Of a stock DataLoader."""
    return iter(DataLoader(dataset, 4, num_workers=num_workers, collate_fn=collate_fn, **options))


def of(*values: Any, rule: Any = "stack") -> Any:
    """What a batch has of a field with these values."""
    return TensorCollate(fields={"x": rule})([{"x": value} for value in values])["x"]


def is_equal(found: Any, expected: torch.Tensor) -> bool:
    """Also in dtype."""
    return isinstance(found, torch.Tensor) and found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([torch.tensor([1, 2]), torch.tensor([3, 4])], torch.tensor([[1, 2], [3, 4]])),
        ([torch.tensor(1, dtype=torch.int16)] * 2, torch.tensor([1, 1], dtype=torch.int16)),
        ([np.zeros((2, 3), np.uint8)] * 2, torch.zeros(2, 2, 3, dtype=torch.uint8)),
        ([np.arange(3)[::-1], torch.arange(3)], torch.tensor([[2, 1, 0], [0, 1, 2]])),
        ([1, 2**40], torch.tensor([1, 2**40])),
        ([1, 2.5], torch.tensor([1, 2.5])),
        ([True, False], torch.tensor([True, False])),
        ([np.float64(0.5), np.int32(2)], torch.tensor([0.5, 2.0])),
        ([[1, 2], [3, 4]], torch.tensor([[1, 2], [3, 4]])),
        ([[1, 2], (3.5, 4)], torch.tensor([[1.0, 2.0], [3.5, 4.0]])),
        ([[[1], [2]], [[3], [4]]], torch.tensor([[[1], [2]], [[3], [4]]])),
        ([np.bool_(True), np.bool_(False)], torch.tensor([True, False])),
    ],
)
@pytest.mark.filterwarnings("ignore:In future, it will be an error for 'np.bool_':DeprecationWarning")  # NumPy 1.26
def test_tensors_arrays_and_numbers_are_stacked(values: list[Any], expected: torch.Tensor) -> None:
    """Those of tensors and arrays keep their dtype; numbers are int64, float32 or bool."""
    assert is_equal(of(*values), expected)


@pytest.mark.parametrize("values", [["a", "b"], [b"a", b""], [None, None], [{"a": 1}, {}], [["a"], []], [[], []]])
def test_other_values_are_a_list(values: list[Any]) -> None:
    """Strings, bytes, dicts, and lists of these: an entry for each sample."""
    assert of(*values) == values


def test_arrays_that_cannot_be_written_are_copied() -> None:
    """Without torch's warning, and the source's own memory is left alone."""
    array = np.arange(3)
    array.flags.writeable = False
    of(array)[0, 0] = 7
    assert array.tolist() == [0, 1, 2]


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    side=st.sampled_from(["right", "left"]),
    multiple_of=st.integers(1, 7),
)
def test_padded_rows_hold_their_values_on_the_other_side(lengths: list[int], side: Any, multiple_of: int) -> None:
    """One length: the least multiple that the longest fits into; what is filled in is the value."""
    values = [torch.arange(1, 1 + length) for length in lengths]
    padded = of(*values, rule=Pad(value=-5, side=side, multiple_of=multiple_of))
    length = padded.shape[1]
    assert padded.dtype == torch.int64
    assert length % multiple_of == 0
    assert max(lengths) <= length < max(lengths) + multiple_of
    for row, value in zip(padded.tolist(), values, strict=True):
        filled = [-5] * (length - len(value))
        assert row == (value.tolist() + filled if side == "right" else filled + value.tolist())


def test_padding_is_along_the_first_dimension_of_any_numbers() -> None:
    """Arrays of several dimensions, and lists from JSON."""
    assert of(np.ones((1, 2)), np.ones((3, 2)), rule=Pad()).shape == (2, 3, 2)
    assert is_equal(of([1], [2, 3], [], rule=Pad(-100)), torch.tensor([[1, -100], [2, 3], [-100, -100]]))
    assert is_equal(of([True], [], rule=Pad()), torch.tensor([[True], [False]]))


@pytest.mark.parametrize(
    ("values", "rule", "message"),
    [
        (
            [torch.ones(2), torch.ones(3)],
            "stack",
            r"'x': several shapes, \(2,\) in sample 0 .* and \(3,\) in .*\n.*Pad\(\)",
        ),
        (
            [[1], [2, 3]],
            "stack",
            r"'x': several shapes, \(1,\) in sample 0 of source 'one source' and .*another'\n.*Pad",
        ),
        (
            [torch.ones(2), torch.ones(2).int()],
            "stack",
            r"several dtypes, torch.float32 in .*torch.int32.*\n.*\"list\"",
        ),
        ([torch.ones(2), None], "stack", "several kinds, numbers in sample 0 .* and NoneType in sample 1"),
        (["a", 1], "stack", "several kinds, str in sample 0 .* and numbers in sample 1"),
        (["a", "b"], Pad(), "expected tensors, arrays or numbers to pad, got str"),
        ([1, 2], Pad(), "expected values with a length to pad, got a number"),
        ([torch.ones(2, 3), torch.ones(2, 4)], Pad(), r"several shapes beyond the first dimension, \(3,\) in"),
        ([torch.ones(1).int(), torch.ones(2).int()], Pad(0.5), r"0.5 is no value of torch.int32.*\n.*Pad\(value=…\)"),
        ([np.ones(2, np.uint8), np.ones(2, np.uint8)], Pad(-100), "-100 is no value of torch.uint8"),
    ],
)
def test_what_cannot_be_one_tensor_names_field_sources_and_what_to_write(
    values: list[Any], rule: Any, message: str
) -> None:
    """Nothing is promoted, cut or listed in silence."""
    samples = [{"x": value, "__datasetname__": name} for value, name in zip(values, vars(NAMED).values(), strict=True)]
    with pytest.raises(ValueError, match=f"TensorCollate: field {message}" if "'x'" in message else message):
        TensorCollate(fields={"x": rule})(samples)


@pytest.mark.parametrize("values", [[2**70, 1], [[[1, 2], [3]]] * 2])
def test_an_error_of_torch_gets_the_name_of_the_field(values: list[Any]) -> None:
    """A number beyond int64, rows that are not of one length."""
    with pytest.raises((ValueError, RuntimeError, OverflowError)) as caught:
        of(*values)
    assert "TensorCollate: field 'x'\n  Write TensorCollate(fields={'x': \"list\"})" in caught.value.__notes__[0]


@pytest.mark.parametrize("named", [{}, {"y": "list"}, {"y": Pad()}])
def test_a_field_that_some_samples_lack_is_an_error(named: Any) -> None:
    """It names the field, both sources, and the remedies."""
    samples = [{"x": 1, "__datasetname__": "a"}, {"x": 2, "y": [3], "__datasetname__": "b"}]
    expected = r"field 'y': is missing in sample 0 of source 'a', and is in sample 1 of source 'b'\n  Write "
    with pytest.raises(ValueError, match=expected + r'.*"drop"}\), .* process function .* collate=mixed_collate'):
        TensorCollate(fields=named)(samples)
    assert TensorCollate(fields={"y": "drop"})(samples)["x"].tolist() == [1, 2]


def test_a_field_with_a_rule_must_be_there() -> None:
    """A slip in its name would otherwise leave the field without its rule."""
    with pytest.raises(ValueError, match=r"field 'input_idz': is missing in sample 0, and is in no sample"):
        TensorCollate(fields={"input_idz": Pad()})([{"input_ids": [1]}])
    assert list(TensorCollate(fields={"never": "drop"})([{"x": 1}])) == ["x"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorCollate(fields={"x": "dorp"}), r"fields\['x'\]: expected a Pad\(…\), .*, did you mean 'drop'"),
        (lambda: TensorCollate(fields={"x": Pad}), r"fields\['x'\]: expected a Pad\(…\)"),
        (lambda: TensorCollate(fields={"x": {"value": 0}}), r"in a recipe \{target: streamdata.Pad, params: \{\}\}"),
        (lambda: TensorCollate(default="pad"), "default: expected"),
        (lambda: TensorCollate(default=Pad()), r"default to be one of .*\n  Pad fields by name"),
        (lambda: TensorCollate(fields={"__cursor__": "list"}), "'__cursor__' has no rule"),
        (lambda: Pad(side="both"), "expected side"),
        (lambda: Pad(multiple_of=0), "expected an int >= 1 as multiple_of, got 0"),
        (lambda: Pad(value="0"), "expected a number as value, got '0'"),
        (lambda: TensorCollate()({"x": 1}), "TensorCollate: the batch is one sample"),
        (lambda: TensorCollate()([]), "TensorCollate: expected at least one sample"),
        (lambda: TensorCollate()([{"x": 1}, 5]), "TensorCollate: sample 1 of the batch is a int, expected a dict"),
    ],
)  # fmt: skip
def test_rules_that_are_none_are_refused(make: Any, message: str) -> None:
    """When the collate is made, not in a worker."""
    with pytest.raises(ValueError, match=message):
        make()


def test_defaults_hold_for_fields_without_a_rule() -> None:
    """And images may be listed."""
    sample = {"image": torch.zeros(3, 2, 2, dtype=torch.uint8), "text": "a", "number": 1}
    listed = TensorCollate(default="list")([sample, sample])
    assert listed["number"] == [1, 1]
    assert listed["image"][1] is sample["image"]
    assert list(TensorCollate(fields={"number": "stack"}, default="drop")([sample])) == ["number"]
    two = [sample, sample | {"image": torch.zeros(3, 4, 4)}]
    assert [each.shape[1] for each in TensorCollate(fields={"image": "list"})(two)["image"]] == [2, 4]


def test_our_own_fields_are_dropped_but_for_the_state() -> None:
    """One that is named is kept: a loss per source needs its name."""
    samples = list(islice(rows(), 4))
    assert list(PADDED(samples)) == ["tokens", "number", "text", "source_ids", "record_ids", "__state__"]
    named = TensorCollate(fields={"tokens": "drop", "__datasetname__": "list"})(samples)
    assert named["__datasetname__"] == [sample["__datasetname__"] for sample in samples]


def packed(*lengths: int) -> dict[str, Any]:
    """A row of documents of these lengths."""
    bounds = np.cumsum([0, *lengths]).tolist()
    total = bounds[-1]
    return {
        "input_ids": torch.arange(total),
        "cu_seqlens": torch.tensor(bounds, dtype=torch.int32),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "mask": [True] * total,
        "vectors": np.ones((total, 2), np.float32),
        "images": ["an image"],
        "weight": 0.5,
    }


def test_packed_rows_are_joined_end_to_end() -> None:
    """With all that has a value for each token; the bounds run on."""
    batch = TensorCollate()([packed(2, 3), packed(4), packed(1, 1, 1)])
    assert is_equal(batch["cu_seqlens"], torch.tensor([0, 2, 5, 9, 10, 11, 12], dtype=torch.int32))
    assert batch["input_ids"].tolist() == [*range(5), *range(4), *range(3)]
    assert batch["position_ids"].tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 0, 0]
    assert (batch["mask"].shape, batch["mask"].dtype, batch["vectors"].shape) == ((12,), torch.bool, (12, 2))
    assert (batch["images"], batch["weight"].tolist()) == ([["an image"]] * 3, [0.5] * 3)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=5))
def test_joined_rows_hold_the_documents_of_all_rows(lengths: list[list[int]]) -> None:
    """In their order, whatever the rows hold."""
    batch = TensorCollate()([packed(*row) for row in lengths])
    assert batch["cu_seqlens"].diff().tolist() == [length for row in lengths for length in row]
    documents = torch.tensor_split(batch["position_ids"], batch["cu_seqlens"][1:-1].to(torch.int64))
    assert [each.tolist() for each in documents] == [list(range(length)) for row in lengths for length in row]


def test_joined_rows_are_filled_up_at_their_end() -> None:
    """The bounds count real tokens."""
    batch = TensorCollate(fields={"input_ids": Pad(value=-1, multiple_of=8)})([packed(2, 3), packed(4)])
    assert batch["input_ids"].tolist() == [*range(5), *range(4), *[-1] * 7]
    assert (batch["cu_seqlens"].tolist(), len(batch["position_ids"])) == ([0, 2, 5, 9], 9)
    with pytest.raises(ValueError, match=r"'input_ids': expected packed rows to be filled up at their end"):
        TensorCollate(fields={"input_ids": Pad(side="left")})([packed(2)])


def test_another_rule_for_the_bounds_keeps_rows_apart() -> None:
    """Then each is a row of the batch; "stack" is what it would be."""
    named = TensorCollate(fields=dict.fromkeys(("input_ids", "cu_seqlens"), "stack"), default="drop")
    assert named([packed(2, 3), packed(4)])["cu_seqlens"].tolist() == [0, 2, 5, 9]
    fields = dict.fromkeys(("input_ids", "position_ids", "mask", "vectors"), Pad())
    batch = TensorCollate(fields={**fields, "cu_seqlens": "list"})([packed(2, 3), packed(4)])
    assert [each.tolist() for each in batch["cu_seqlens"]] == [[0, 2, 5], [0, 4]]
    assert (batch["input_ids"].shape, batch["vectors"].shape) == ((2, 5), (2, 5, 2))


def padded(*lengths: int) -> dict[str, Any]:
    """A row of documents of these lengths, each padded to a multiple of four."""
    row = packed(*(-(-length // 4) * 4 for length in lengths))
    true = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)
    return {**row, "cu_seqlens": true, "cu_seqlens_padded": row["cu_seqlens"]}


def test_rows_of_padded_documents_are_joined_by_their_padded_bounds() -> None:
    """Both bounds run on, those of the true lengths by these."""
    batch = TensorCollate()([padded(2, 3), padded(6)])
    assert is_equal(batch["cu_seqlens"], torch.tensor([0, 2, 5, 11], dtype=torch.int32))
    assert is_equal(batch["cu_seqlens_padded"], torch.tensor([0, 4, 8, 16], dtype=torch.int32))
    assert batch["input_ids"].tolist() == [*range(8), *range(8)]


def test_padded_bounds_follow_the_rule_of_the_bounds() -> None:
    """So that one word keeps rows apart, or leaves both out."""
    rows = [padded(2, 3), padded(6)]
    fields = dict.fromkeys(("input_ids", "position_ids", "mask", "vectors"), Pad())
    batch = TensorCollate(fields={**fields, "cu_seqlens": "list"})(rows)
    assert [each.tolist() for each in batch["cu_seqlens_padded"]] == [[0, 4, 8], [0, 8]]
    assert "cu_seqlens_padded" not in TensorCollate(fields={**fields, "cu_seqlens": "drop"})(rows)
    named = TensorCollate(fields=dict.fromkeys(("input_ids", "cu_seqlens"), "stack"), default="drop")(rows)
    assert named["cu_seqlens_padded"].tolist() == [0, 4, 8, 16]


@pytest.mark.parametrize("bounds", [[1, 5], [], [0, 3, 2, 5], [[0, 5]]])
def test_bounds_that_are_none_are_refused(bounds: list[Any]) -> None:
    """They must begin at 0 and not fall."""
    with pytest.raises(ValueError, match=r"'cu_seqlens': expected where the documents of a packed row begin"):
        TensorCollate()([packed(5) | {"cu_seqlens": torch.tensor(bounds)}])


def test_rows_that_are_padded_already_are_not_joined() -> None:
    """Their bounds would lead to padding."""
    row = {"input_ids": torch.zeros(8), "cu_seqlens": torch.tensor([0, 2, 5])}
    with pytest.raises(ValueError, match=r"rows have \[5, 5\] tokens, but no field has so many values\n  Give rows"):
        TensorCollate()([row, row])


def test_to_float_converts_images_alone() -> None:
    """Into a new dict; tokens that are uint8 stay."""
    images = torch.tensor([0, 51, 255, 255], dtype=torch.uint8).reshape(1, 1, 2, 2)
    batch = {
        "images": images,
        "listed": [images[0], None],
        "bytes": torch.ones(2, 3, dtype=torch.uint8),
        "__state__": "s",
    }
    floats = to_float(batch)
    assert is_equal(floats["images"].flatten(), torch.tensor([0, 51 / 255, 1, 1]))
    assert is_equal(floats["listed"][0], floats["images"][0])
    assert (floats["bytes"].dtype, floats["__state__"], floats["listed"][1]) == (torch.uint8, "s", None)
    assert batch["images"] is images
    assert images.flatten().tolist() == [0, 51, 255, 255]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_its_state_is_that_of_the_samples(num_workers: int) -> None:
    """Of every batch, with its number in the lane; the parcel arrives as a plain dict, and nothing else does."""
    ours = list(islice(batches(rows(), num_workers), 12))
    samples = list(islice(batches(rows(), num_workers, mixed_collate), 12))
    assert [to_state(batch) for batch in ours] == [to_state(batch) for batch in samples]
    assert to_state(ours) == to_state(samples)
    assert {type(batch) for batch in ours} == {dict}
    assert [batch["number"].tolist() for batch in ours] == [[each["number"] for each in batch] for batch in samples]
    assert ours[0]["tokens"].shape[1] % 4 == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_through_it_is_exact(num_workers: int) -> None:
    """After any number of batches, from plain JSON."""
    whole = [batch["number"].tolist() for batch in islice(batches(rows(), num_workers), 16)]
    states: dict[str, Any] = {}
    for step, batch in enumerate(islice(batches(rows(), num_workers), 9), 1):
        states.update(to_state(batch))
        if step in (1, 4, 9):
            dataset = rows()
            dataset.set_dataloader_states(through_json(states))
            rest = [later["number"].tolist() for later in islice(batches(dataset, num_workers), 16 - step)]
            assert rest == whole[step:]


def test_the_state_survives_what_moves_batches() -> None:
    """It is a string: pinning, copies to a device and pickling leave it alone."""
    (batch,) = islice(batches(rows()), 1)
    moved = {key: value.to("cpu") if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    assert to_state(moved) == to_state(pickle.loads(pickle.dumps(batch))) == to_state(batch)
    assert type(batch["__state__"]) is str


def test_samples_of_other_datasets_have_no_state() -> None:
    """Their batch is one all the same; `to_state` says what is missing."""
    (batch,) = batches(Samples(lambda index: {"x": index}, 4), 1, TensorCollate())
    assert list(batch) == ["x"]
    with pytest.raises(StateError, match="without its state"):
        to_state(batch)


def test_samples_with_and_without_a_state_make_no_batch() -> None:
    """What was delivered of them would be lost."""
    samples = list(islice(rows(), 2))
    del samples[1]["__cursor__"]
    with pytest.raises(StateError, match="without its state"):
        PADDED(samples)


def test_the_trainer_is_warned_of_a_left_iteration() -> None:
    """As with mixed_collate, though the batch has none of the samples' own fields."""
    dataset = rows()
    next(batches(dataset, 2))
    with pytest.warns(UserWarning, match="the iteration before was left before its end") as warned:
        list(islice(batches(dataset, 2), 4))
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(batches(rows(), 2))


@pytest.mark.parametrize("small_bytes", [0, 1 << 17], ids=["lent", "through the pipe"])
def test_a_batch_is_one_buffer_also_where_it_is_pinned(monkeypatch: pytest.MonkeyPatch, small_bytes: int) -> None:
    """DataLoader's thread pins it at once, and the dict's tensors lie in it."""
    monkeypatch.setattr(collate, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(tensor_collate, "get_worker_info", lambda: SimpleNamespace(id=0))
    pinned: list[torch.Tensor] = []

    def pin_memory(tensor: torch.Tensor, *_: object) -> torch.Tensor:
        if not any(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata for other in pinned):
            pinned.append(tensor.clone())
            return pinned[-1]
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    samples = list(islice(rows(), 4))
    batch = through_pinning_loop(monkeypatch, PADDED(samples))
    assert len(pinned) == 1
    assert to_state(batch) == to_state(next(batches(rows(), 0, mixed_collate)))
    assert batch["number"].tolist() == [sample["number"] for sample in samples]
    pinned[0].zero_()
    assert not batch["tokens"].any()


def test_a_value_that_cannot_be_pickled_names_sample_and_field() -> None:
    """In the worker's main thread, so that the trainer hears of it."""
    loader = batches(Samples(lambda index: {"x": 1, "fn": (lambda: 1) if index == 2 else None}, 4), 1, TensorCollate())
    with raises_in_worker(Exception, r"TensorCollate: sample 2, field 'fn': a function that cannot be pickled"):
        next(loader)


RECIPE = """
target: streamdata.TensorCollate
params:
  fields:
    input_ids:
      target: streamdata.Pad
      params: {value: -1, side: left, multiple_of: 4}
    text: drop
  default: list
"""


def test_a_recipe_may_name_it(tmp_path: Any) -> None:
    """With the same parameters as in Python."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    assert check_recipe(recipe, allow=[]) == []
    made = instantiate_from_yaml(recipe, allow=[])([{"input_ids": [1, 2], "text": "a", "n": 1}])
    assert (made["input_ids"].tolist(), made["n"], list(made)) == ([[-1, -1, 1, 2]], [1], ["input_ids", "n"])


class PassedOn(IterableDataset[Any]):
    """Somebody's own dataset around ours."""

    def __init__(self, dataset: MergedDataset, field: str | None = None) -> None:
        self._dataset, self._field = dataset, field

    def __iter__(self) -> Iterator[Any]:
        for sample in self._dataset:
            yield sample if self._field is None else {self._field: sample[self._field]}


def own_collate(samples: list[dict[str, Any]]) -> Any:
    """Somebody's own, around torch's."""
    return default_collate(samples)


@pytest.mark.parametrize(
    ("make", "num_workers", "start"),
    [(rows, 0, None), (rows, 2, "fork"), (rows, 1, "forkserver"), (two_kinds, 0, None), (two_kinds, 2, "fork")],
)
def test_torchs_own_collate_is_refused(make: Any, num_workers: int, start: str | None) -> None:
    """Before it fails at a field, also where sources have different fields, with what to write."""
    loader = DataLoader(make(), batch_size=4, num_workers=num_workers, multiprocessing_context=start)
    with raises_in_worker(
        StateError, r"default_collate cannot .*\n  Write StreamLoader(.|\n)*TensorCollate(.|\n)*mixed"
    ):
        next(iter(loader))


def test_it_is_refused_behind_another_function_or_dataset_too() -> None:
    """What says where the stream stands cannot be collated; without that, batches are nobody's business."""
    one, other = (MergedDataset([Numbers("a", 9)]) for _ in range(2))
    for dataset, collate_fn in ((one, own_collate), (PassedOn(other), default_collate)):
        with pytest.raises(StateError, match="Write StreamLoader"):
            next(batches(dataset, 0, collate_fn))
    (batch,) = islice(batches(PassedOn(rows(), "number"), 0, default_collate), 1)
    assert batch["number"].shape == (4,)
    with pytest.raises(StateError, match="without its state"):
        to_state(batch)
