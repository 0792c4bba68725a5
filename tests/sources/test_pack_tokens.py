import copy
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from streamdata import MergedDataset, PackTokens, instantiate_from_yaml, named, to_state
from streamdata.errors import StateError
from tests.streams import Numbers, assert_exact_resume, loaded, plain

Sample = dict[str, Any]


def documents(lengths: list[int]) -> list[Sample]:
    """Samples whose tokens tell where they come from: 100 times their number, and their place."""
    return [
        {
            "input_ids": [100 * number + place for place in range(length)],
            "labels": np.arange(length),
            "name": f"d{number}",
        }
        for number, length in enumerate(lengths)
    ]


class Pulls(Iterator[Any]):
    """An iterator that calls a function for each record; unlike a generator it can be asked again after its end."""

    def __init__(self, pull: Callable[[], Any]) -> None:
        self.number = 0
        self._pull = pull

    def __next__(self) -> Any:
        self.number += 1
        return self._pull()


class Stretches:
    """Feeds a stateful function as a lane does; `cursor` is (first record of the burst, its state, outputs given)."""

    def __init__(self, function: Any, records: list[Any], cursor: tuple[int, Any, int] = (0, None, 0)) -> None:
        self._function = copy.deepcopy(function)
        self._records = records
        self._begin, self._state, self._skip = cursor
        self.next, self._given = self._begin, 0

    def __iter__(self) -> Iterator[tuple[Any, tuple[int, Any, int]]]:
        if self._state is not None:
            self._function.load_state_dict(self._state)
        for output in self._function(Pulls(self._pull)):
            self._given += 1
            if self._given > self._skip:
                yield plain(output), (self._begin, self._state, self._given)

    def _pull(self) -> Any:
        if self._given:
            self._state = json.loads(json.dumps(self._function.state_dict()))
            self._begin, self._given, self._skip = self.next - self._state["rewind"], 0, 0
        if self.next == len(self._records):
            raise StopIteration
        self.next += 1
        return self._records[self.next - 1]


def run(function: Any, records: list[Any], cursor: Any = (0, None, 0)) -> list[Any]:
    """What is delivered from a cursor on, each with the cursor after it."""
    return list(Stretches(function, records, cursor))


def rows_of(function: PackTokens, samples: list[Sample]) -> list[list[list[int]]]:
    """The tokens of each row, by document."""
    rows = list(function(iter(samples)))
    return [[row["input_ids"][b:e].tolist() for b, e in pairwise(row["cu_seqlens"].tolist())] for row in rows]


LONGER = ("drop", "truncate", "split")
lengths_of = st.lists(st.integers(0, 20), max_size=40)
settings_of = st.tuples(st.integers(1, 12), st.integers(1, 12), st.sampled_from(LONGER))


def wanted(lengths: list[int], most: int, longer: str) -> list[int]:
    """The tokens that rows must hold."""
    kept = [(n, min(size, most) if longer == "truncate" else size) for n, size in enumerate(lengths)]
    kept = [(n, size) for n, size in kept if longer == "split" or size <= most]
    return [100 * n + place for n, size in kept for place in range(size)]


@given(lengths_of, settings_of)
def test_each_token_is_in_one_row_and_no_row_has_too_many(lengths: list[int], settings: Any) -> None:
    """Counted as a multiset; rows hold documents, or pieces of one, with their labels and positions beside them."""
    most, lookahead, longer = settings
    samples = documents(lengths)
    rows = list(PackTokens(most, lookahead, longer=longer)(iter(samples)))
    tokens = [token for row in rows for token in row["input_ids"].tolist()]
    assert Counter(tokens) == Counter(wanted(lengths, most, longer))
    for row in rows:
        marks, ids = row["cu_seqlens"].tolist(), row["input_ids"].tolist()
        assert (marks[0], marks[-1]) == (0, len(ids))
        assert 0 < len(ids) <= most
        assert row["position_ids"].tolist() == [place for b, e in pairwise(marks) for place in range(e - b)]
        assert row["labels"].tolist() == [token % 100 for token in ids]
        assert row["name"] == [f"d{ids[begin] // 100}" for begin in marks[:-1]]
        assert all(ids[b:e] == list(range(ids[b], ids[b] + e - b)) for b, e in pairwise(marks))


@given(lengths_of, settings_of)
def test_a_resume_after_each_row_gives_the_rest(lengths: list[int], settings: Any) -> None:
    """The same rows and the same cursors, whichever of them it begins at."""
    most, lookahead, longer = settings
    function, samples = PackTokens(most, lookahead, longer=longer), documents(lengths)
    whole = run(function, samples)
    for index, (_, cursor) in enumerate(whole):
        assert run(function, samples, cursor) == whole[index + 1 :]


@given(lengths_of, settings_of)
def test_a_burst_fed_alone_ends_with_at_most_one_row_more(lengths: list[int], settings: Any) -> None:
    """As after a change of size: its records alone give the same outputs, and what is carried over as one short row."""
    most, lookahead, longer = settings
    function, samples = PackTokens(most, lookahead, longer=longer), documents(lengths)
    lane = Stretches(function, samples)
    bursts: dict[tuple[int, str], list[Any]] = {}
    for row, (begin, state, number) in lane:
        burst = bursts.setdefault((begin, json.dumps(state)), [state, 0, []])
        burst[1] = lane.next
        burst[2].append(row)
        assert len(burst[2]) == number
    for (begin, _), (state, end, outputs) in bursts.items():
        alone = [row for row, _ in run(function, samples[begin:end], (0, state, 0))]
        assert alone[: len(outputs)] == outputs
        assert len(alone) <= len(outputs) + 1


@given(lengths_of, settings_of)
def test_no_burst_is_of_more_samples_than_are_held_to_plan(lengths: list[int], settings: Any) -> None:
    """What is carried over are the last ones pulled; those without tokens between them count."""
    most, lookahead, longer = settings
    samples = documents([length + 1 for length in lengths])
    lane = Stretches(PackTokens(most, lookahead, longer=longer), samples)
    most_held = max(lookahead, most + 1)
    for _, (begin, _, _) in lane:
        if longer != "drop":
            assert lane.next - begin <= most_held


def test_rows_look_as_documented() -> None:
    """Best fit of six documents; the last, which would begin a row, is carried over until the end."""
    rows = rows_of(PackTokens(6, lookahead=6), documents([4, 3, 2, 3, 1, 5]))
    assert [[piece[0] // 100 for piece in row] for row in rows] == [[0, 2], [1, 3], [4, 5]]
    row = next(PackTokens(6)(iter(documents([4, 2]))))
    assert {name: value.dtype for name, value in row.items() if name != "name"} == {
        "input_ids": torch.int64,
        "labels": torch.int64,
        "cu_seqlens": torch.int32,
        "position_ids": torch.int64,
    }
    assert row["cu_seqlens"].tolist() == [0, 4, 6]


@given(st.lists(st.integers(1, 8), max_size=40), st.sampled_from([1, 2, 4]))
def test_a_lookahead_of_one_packs_in_sequence(lengths: list[int], multiple: int) -> None:
    """A row ends where the next document, with its padding, does not fit."""
    rows: list[list[int]] = []
    for length in (-(-length // multiple) * multiple for length in lengths):
        if not rows or sum(rows[-1]) + length > 8:
            rows.append([])
        rows[-1].append(length)
    got = PackTokens(8, lookahead=1, document_multiple=multiple)(iter(documents(lengths)))
    name = "cu_seqlens_padded" if multiple > 1 else "cu_seqlens"
    assert [row[name].diff().tolist() for row in got] == rows


multiples_of = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))


@given(lengths_of, multiples_of, st.sampled_from([1, 5, 40]), st.sampled_from(LONGER))
def test_padded_rows_hold_the_rows_of_padded_lengths(lengths: list[int], multiples: Any, ahead: int, how: Any) -> None:
    """What the bounds say is there holds each token once; the rest is padding, and no row has too many."""
    multiple, times, rows = multiples
    row_multiple, most = multiple * times, multiple * times * rows * 2
    packer = PackTokens(most, ahead, longer=how, document_multiple=multiple, row_multiple=row_multiple, pad_id=7)
    found = []
    for row in packer(iter(documents(lengths))):
        whole, ids = row["cu_seqlens_padded" if row_multiple > 1 else "cu_seqlens"].tolist(), row["input_ids"].tolist()
        assert (len(row["labels"]), whole[-1]) == (len(ids), len(ids))
        assert len(ids) <= most
        assert len(ids) % row_multiple == 0
        assert row["position_ids"].tolist() == [place for b, e in pairwise(whole) for place in range(e - b)]
        for name, size, (begin, end) in zip(
            row["name"], row["cu_seqlens"].diff().tolist(), pairwise(whole), strict=True
        ):
            if name is None:  # the row's own padding, which a multiple of the documents' fills
                assert (ids[begin:], set(row["labels"][begin:].tolist())) == ([7] * size, {-100})
                continue
            assert (end - begin) % multiple == 0
            assert 0 <= end - begin - size < multiple
            assert ids[begin + size : end] == [7] * (end - begin - size)
            assert row["labels"][begin + size : end].tolist() == [-100] * (end - begin - size)
            found += ids[begin : begin + size]
    assert Counter(found) == Counter(wanted(lengths, most, how))


def test_padded_rows_look_as_documented() -> None:
    """Two documents in multiples of 4, in a row of 16: the last document is padding alone."""
    samples = [{**one, "loss_mask": [True] * len(one["input_ids"])} for one in documents([3, 5])]
    samples = [{**one, "__record__": (number, 0, 5, 0), "__weight__": 2.0} for number, one in enumerate(samples, 3)]
    packer = PackTokens(16, document_multiple=4, row_multiple=16, loss_weights=True)
    (row,) = packer(iter(samples))
    assert row["cu_seqlens"].tolist() == [0, 3, 8, 12]
    assert row["cu_seqlens_padded"].tolist() == [0, 4, 12, 16]
    assert row["cu_seqlens"].dtype == row["cu_seqlens_padded"].dtype == torch.int32
    assert row["input_ids"].tolist() == [0, 1, 2, 0, 100, 101, 102, 103, 104, 0, 0, 0, 0, 0, 0, 0]
    assert row["labels"].tolist() == [0, 1, 2, -100, *range(5), *[-100] * 7]
    assert row["loss_mask"].tolist() == [True] * 3 + [False] + [True] * 5 + [False] * 7
    assert row["loss_weight"].tolist() == [2.0] * 3 + [0] + [2.0] * 5 + [0] * 7
    assert row["position_ids"].tolist() == [*range(4), *range(8), *range(4)]
    assert row["name"] == ["d0", "d1", None]
    assert row["source_ids"].tolist() == [3, 4, -1]
    assert row["record_ids"].tolist() == [[0, 5, 0], [0, 5, 0], [-1, -1, -1]]
    assert row["document_weights"].tolist() == [2.0, 2.0, 0.0]


@given(st.lists(st.integers(0, 26), max_size=40), st.integers(1, 9))
def test_a_resume_after_each_padded_row_gives_the_rest(lengths: list[int], lookahead: int) -> None:
    """As of rows that are not padded."""
    packer = PackTokens(24, lookahead, longer="split", document_multiple=4, row_multiple=6)
    samples = documents(lengths)
    whole = run(packer, samples)
    for index, (_, cursor) in enumerate(whole):
        assert run(packer, samples, cursor) == whole[index + 1 :]


@given(st.lists(st.integers(1, 3) | st.integers(20, 24), max_size=40), st.integers(1, 9))
@example([24, *[1] * 12], 7)
def test_padded_documents_are_planned_once_they_fill_a_row(lengths: list[int], lookahead: int) -> None:
    """Those that are carried over count by their padded lengths too: without the last one pulled, all fit into one."""
    lane = Stretches(PackTokens(24, lookahead, document_multiple=4), documents(lengths))
    for _, (begin, _, _) in lane:
        held = [-(-length // 4) * 4 for length in lengths[begin : lane.next - 1]]
        assert len(held) < lookahead or sum(held) <= 24


def test_the_order_of_padded_rows_is_as_it_was() -> None:
    """A pin, as those of `tests/mixing/test_pins.py`: one that changes, changes by intent."""
    sources = [Numbers(name, size, 1, single_process_fn=tokens) for name, size in (("a", 61), ("b", 35))]
    dataset = MergedDataset(
        sources, seed=7, customized_yield_fn=PackTokens(32, 40, document_multiple=4, row_multiple=16)
    )
    fields = ("input_ids", "cu_seqlens", "cu_seqlens_padded", "source_ids", "record_ids")
    rows = [[row[name].tolist() for name in fields] for row in islice(dataset, 100)]
    assert blake2b(json.dumps(rows).encode(), digest_size=6).hexdigest() == "afb9d38c1e70"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"document_multiple": 0}, "document_multiple is 0, expected a whole number of at least 1"),
        ({"row_multiple": 2.0}, "row_multiple is 2.0, expected"),
        ({"pad_id": -1}, "expected a token id from 0 on as pad_id, got -1"),
        ({"document_multiple": 4, "row_multiple": 6}, "a multiple of 12, as padded rows are, got 64\n  Set it to 72"),
        ({"document_multiple": 128}, "a multiple of 128, as padded rows are, got 64\n  Set it to 128"),
    ],
)
def test_multiples_that_do_not_fit_are_refused(settings: Any, message: str) -> None:
    """When it is made."""
    with pytest.raises(ValueError, match=f"PackTokens: .*{message}"):
        PackTokens(64, **settings)


def test_a_type_that_cannot_hold_padding_is_refused() -> None:
    """Else -100 would be 156."""
    sample = {"input_ids": [1], "labels": torch.ones(1, dtype=torch.uint8)}
    with pytest.raises(ValueError, match=r"field 'labels' to have a type that holds its padding -100, got torch.uint8"):
        next(PackTokens(4, document_multiple=2)(iter([sample])))


def test_states_of_other_multiples_are_refused() -> None:
    """Either way: rows that are not padded say nothing of them."""
    plain_rows, padded = PackTokens(8), PackTokens(8, document_multiple=4)
    with pytest.raises(StateError, match="was written with document_multiple=None, the run has 4"):
        padded.load_state_dict(plain_rows.state_dict())
    with pytest.raises(StateError, match="was written with document_multiple=4, the run has None"):
        plain_rows.load_state_dict(padded.state_dict())


def test_lookahead_by_bytes_plans_earlier() -> None:
    """Samples of 100 bytes: with room for 400 it pulls four, and does not wait for a thousand."""
    pulled = []

    def records() -> Iterator[Sample]:
        for sample in documents([3] * 99):
            pulled.append(sample)
            yield {**sample, "image": bytes(50)}  # beside 24 bytes of ids, 24 of labels and 2 of the name

    next(PackTokens(6, lookahead_bytes=400)(records()))
    assert len(pulled) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: ids,
        np.array,
        torch.tensor,
        lambda ids: torch.tensor(ids, dtype=torch.int32),
        lambda ids: np.array(ids, "u2"),
    ],
    ids=["list", "array", "tensor", "int32", "uint16"],
)
def test_tokens_are_lists_arrays_or_tensors(make: Any) -> None:
    """Of any integer type; what torch can hardly compute with becomes int64."""
    (row,) = PackTokens(9)(iter([{"input_ids": make([1, 2, 3])}, {"input_ids": make([4])}]))
    assert row["input_ids"].tolist() == [1, 2, 3, 4]
    given_type = getattr(make([1]), "dtype", None)
    assert row["input_ids"].dtype is (torch.int32 if given_type is torch.int32 else torch.int64)


def test_read_only_arrays_are_packed_without_a_warning() -> None:
    """And a row's memory is its own."""
    ids = np.arange(3)
    ids.flags.writeable = False
    (row,) = PackTokens(9)(iter([{"input_ids": ids}]))
    row["input_ids"] += 1
    assert ids.tolist() == [0, 1, 2]


def test_fields_that_have_a_value_for_each_token_are_joined() -> None:
    """Labels, masks, weights; by their lengths in all samples, so that an image as high as one document stays one."""
    samples = [
        {"input_ids": [1, 2, 3], "mask": [True, False, True], "weight": [0.5, 1.0, 2.0], "image": torch.zeros(3, 2)},
        {"input_ids": [4, 5], "mask": [False, True], "weight": [1.0, 1.0], "image": torch.ones(3, 2)},
    ]
    (row,) = PackTokens(9)(iter(samples))
    assert row["mask"].tolist() == [True, False, True, False, True]
    assert (row["weight"].tolist(), row["weight"].dtype) == ([0.5, 1.0, 2.0, 1.0, 1.0], torch.float32)
    assert [image.tolist() for image in row["image"]] == [[[0.0] * 2] * 3, [[1.0] * 2] * 3]


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        ([1, 0], [0.5], torch.float32),
        (np.array([1, 2], np.uint64), [3], torch.int64),
        (np.array([1, 2], np.uint16), np.array([3], np.uint8), torch.int64),
        (torch.tensor([1, 2], dtype=torch.bfloat16), [0.5], torch.float32),
        ([True, False], [1], torch.int64),
    ],
)
def test_values_of_several_types_have_one_that_holds_them(first: Any, second: Any, dtype: torch.dtype) -> None:
    """Not float64, which nobody asked for, and which holds no token ids."""
    (row,) = PackTokens(8)(iter([{"input_ids": [1, 2], "w": first}, {"input_ids": [3], "w": second}]))
    assert row["w"].dtype == dtype
    assert row["w"].tolist() == [*map(float, first), *map(float, second)]


def test_what_a_document_lacks_is_none_in_the_list() -> None:
    """One entry for each document, so that a list can be read beside `cu_seqlens`."""
    (row,) = PackTokens(9)(iter([{"input_ids": [1, 2], "text": "a"}, {"input_ids": [3], "image": "i"}]))
    assert (row["text"], row["image"]) == (["a", None], [None, "i"])


def test_fields_of_streamdata_are_left_to_the_stream() -> None:
    """It gives a row those of the last sample pulled, as of any stream function."""
    source = named(
        [{"input_ids": [1]}, {"input_ids": [2, 3]}, {"input_ids": [4, 5]}],
        name="a",
        percent=1,
        process_fn=PackTokens(4),
    )
    rows = list(MergedDataset([source], cyclic=False, shuffle_unstreaming_subsets=False))
    assert [(row["input_ids"].tolist(), row["__index__"], row["__datasetname__"]) for row in rows] == [
        ([1], 2, "a"),
        ([2, 3, 4, 5], 2, "a"),
    ]


def test_positions_that_a_sample_brings_are_made_anew() -> None:
    """They begin with each document, or with each piece of one."""
    (row, _) = PackTokens(3, longer="split")(iter([{"input_ids": [1, 2, 3, 4], "position_ids": [7, 8, 9, 9]}]))
    assert row["position_ids"].tolist() == [0, 1, 2]


BAD = [
    ({"ids": [1]}, r"'input_ids', .* got NoneType for a|record .* it has \['ids'\]"),
    ({"input_ids": [1.5]}, "got list"),
    ({"input_ids": [[1]]}, "got list"),
    ({"input_ids": torch.zeros(2)}, r"got Tensor torch.float32 \(2,\)"),
    ({"input_ids": np.zeros((1, 2), int)}, r"got ndarray int64 \(1, 2\)"),
    ({"input_ids": torch.tensor([True])}, "got Tensor torch.bool"),
    ({"input_ids": "text"}, "got str"),
    ({"input_ids": [1] * 5}, "at most 4 tokens, got 5"),
    ({"input_ids": [1, 2], "cu_seqlens": [0, 2]}, "not a packed row"),
    ({"input_ids": [1, 2], "labels": [1, None]}, "expected numbers in field 'labels'"),
]


@pytest.mark.parametrize(("sample", "message"), BAD)
def test_what_cannot_be_packed_is_named(sample: Sample, message: str) -> None:
    """Field, what was expected and got, and a remedy."""
    with pytest.raises(ValueError, match=f"PackTokens: (?s:.*){message}(?s:.*)\n  "):
        list(PackTokens(4)(iter([sample])))


def test_a_field_that_one_of_a_row_lacks_is_named() -> None:
    """Labels of one source beside samples of another that has none."""
    samples = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4], "__url__": "x.tar", "__key__": "k"}]
    with pytest.raises(
        ValueError, match=r"field 'labels', .* got none for x.tar, key 'k'\n.*pack each source by itself"
    ):
        list(PackTokens(9)(iter(samples)))


@pytest.mark.parametrize(
    "settings",
    [(0,), (4, 0), (4.0,), (True,), (4, 1, "input_ids", "cut"), (4, None)],
)
def test_settings_out_of_range_are_refused(settings: Any) -> None:
    """When it is made."""
    with pytest.raises(ValueError, match=r"PackTokens: \w+ is .*, expected .*\n  "):
        PackTokens(*settings)


@pytest.mark.parametrize("longer", ["drop", "truncate"])
def test_longer_documents_are_counted_and_told_once(longer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """In its state, also where some of them are given again; the first has a line in the log."""
    samples = documents([3, 9, 3, 9, 2, 9, 2, 4])
    with caplog.at_level(logging.WARNING):
        cursors = [cursor for _, cursor in run(PackTokens(4, lookahead=2, longer=longer), samples)]
    assert [record.getMessage() for record in caplog.records if "9 tokens, more than 4" in record.getMessage()] != []
    assert len(caplog.records) == 1
    counts = [state["overlong"] for _, state, _ in cursors if state]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    for at in range(len(cursors)):
        resumed = run(PackTokens(4, lookahead=2, longer=longer), samples, cursors[at])
        assert [cursor for _, cursor in resumed] == cursors[at + 1 :]


def test_its_state_is_small_json_without_payload() -> None:
    """Counts and settings, however much is held."""
    states = [state for _, (_, state, _) in run(PackTokens(64), documents([9] * 5000)) if state]
    assert states
    assert max(len(json.dumps(state)) for state in states) < 160


@pytest.mark.parametrize(
    "other",
    [
        PackTokens(9),
        PackTokens(8, 2),
        PackTokens(8, field="ids"),
        PackTokens(8, longer="drop"),
        PackTokens(8, lookahead_bytes=9),
    ],
)
def test_states_of_other_settings_are_refused(other: PackTokens) -> None:
    """They would plan the open burst otherwise."""
    with pytest.raises(StateError, match=r"was written with \w+=.*, the run has .*\n  Set it back"):
        other.load_state_dict(PackTokens(8).state_dict())


@pytest.mark.parametrize("at_top", [False, True])
def test_other_settings_are_refused_within_the_first_burst_too(at_top: bool) -> None:
    """Before the first burst ends, too: what was given of it would come twice."""

    def packed(max_tokens: int) -> MergedDataset:
        pack = PackTokens(max_tokens, lookahead=50)
        source = named(documents([5, 3, 2, 6, 4, 4]), name="a", percent=1, **{} if at_top else {"process_fn": pack})
        return MergedDataset([source], customized_yield_fn=pack if at_top else None)

    states = to_state([next(iter(packed(8)))])
    resumed = packed(9)
    resumed.set_dataloader_states(states)
    with pytest.raises(StateError, match="was written with max_tokens=8, the run has 9"):
        next(iter(resumed))


@pytest.mark.parametrize(
    "state", [None, [], {}, {"rewind": 1}, {"rewind": -1, "offset": 0, "overlong": 0}, {"rewind": "1"}]
)
def test_what_is_no_state_is_refused(state: Any) -> None:
    """Never a fresh start in silence."""
    with pytest.raises(StateError, match=r"PackTokens: expected counts"):
        PackTokens(8).load_state_dict(state)


def test_a_document_that_has_changed_since_is_noticed() -> None:
    """Of its 9 tokens 8 were given; now it has 3."""
    function = PackTokens(4, 1, longer="split")
    cursor = run(function, documents([9, 4]))[2][1]
    assert cursor[1]["offset"] == 8
    with pytest.raises(StateError, match="has 3 tokens, of which 8 were given before\n"):
        run(function, documents([3, 4]), cursor)


def made(index: int) -> Sample:
    """A document of 0 to 9 tokens."""
    return {"input_ids": torch.full((index * 7 % 10,), index), "value": index}


def tokens(record: Sample) -> Sample:
    """A process function."""
    return made(record["value"])


RECIPE = """
target: streamdata.MergedDataset
params:
  datasets:
    - target: streamdata.JsonlIterableDataset
      name: a
      percent: 1
      params: {path: FOLDER}
      process_fn: {target: streamdata.PackTokens, params: {max_tokens: 4, longer: split}}
    - target: streamdata.JsonlIterableDataset
      name: b
      percent: 1
      params: {path: FOLDER}
  customized_yield_fn: {target: streamdata.GroupByLength, params: {max_tokens_per_batch: 8}}
"""


def test_a_recipe_names_them(tmp_path: Path) -> None:
    """As a source's function and as a mixture's."""
    (tmp_path / "0.jsonl").write_text("".join(json.dumps({"input_ids": [n] * n}) + "\n" for n in range(1, 9)))
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("FOLDER", str(tmp_path)))
    groups = list(islice(instantiate_from_yaml(tmp_path / "recipe.yaml", allow=[]), 9))
    samples = [sample for group in groups for sample in group["samples"]]
    assert {sample["__datasetname__"] for sample in samples} == {"a", "b"}
    assert all(("cu_seqlens" in sample) == (sample["__datasetname__"] == "a") for sample in samples)


@pytest.mark.each_value
@pytest.mark.parametrize("place", ["process_fn", "customized_yield_fn"])
@pytest.mark.parametrize(("lookahead", "num_workers"), [(1, 2), (5, 0), (40, 2)])
def test_a_stream_resumes_exactly(place: str, lookahead: int, num_workers: int) -> None:
    """From every step, in a source and over a mixture, also where it looks ahead beyond an epoch."""
    function = PackTokens(16, lookahead, longer="split")

    def make() -> MergedDataset:
        own = {"process_fn": function} if place == "process_fn" else {}
        sources = [Numbers(name, size, 1, single_process_fn=tokens, **own) for name, size in (("a", 30), ("b", 7))]
        return MergedDataset(sources, seed=3, customized_yield_fn=None if own else function)

    assert_exact_resume(make, steps=15, beyond=15, num_workers=num_workers, batch_size=2)


def test_lanes_of_a_finite_stream_deliver_each_token_once() -> None:
    """Over three ranks with two workers each."""
    counts: Counter[int] = Counter()
    for rank in range(3):
        source = Numbers("a", 200, 1, single_process_fn=tokens, process_fn=PackTokens(16, 8))
        dataset = MergedDataset([source], cyclic=False)
        dataset.set_data_parallel(3, rank)
        counts.update(token for (row,) in loaded(dataset, 2) for token in row["input_ids"].tolist())
    assert counts == Counter({index: index * 7 % 10 for index in range(200) if index * 7 % 10})


def test_a_change_of_size_leaves_one_short_row_of_each_lane_and_source() -> None:
    """Two lanes become one: all tokens once, and beside rows of 16 two short ones."""

    def lane_of(size: int, rank: int) -> MergedDataset:
        source = Numbers("a", 1000, 1, single_process_fn=one_token, process_fn=PackTokens(16, 64))
        dataset = MergedDataset([source])
        dataset.set_data_parallel(size, rank)
        return dataset

    rows, states = [], {}
    for rank in range(2):
        for row in islice(lane_of(2, rank), 6):
            rows.append(row["input_ids"].tolist())
            states.update(to_state(row))
    one = lane_of(1, 0)
    one.set_dataloader_states(json.loads(json.dumps(states)))
    rows += [row["input_ids"].tolist() for row in islice(one, 40)]
    values = [token for row in rows for token in row]
    assert len(values) == len(set(values))
    assert len([row for row in rows if len(row) < 16]) <= 2


def one_token(record: Sample) -> Sample:
    """A process function."""
    return {"input_ids": [record["value"]]}
