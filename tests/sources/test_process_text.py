import copy
import json
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from streamdata import JsonlIterableDataset, MergedDataset, to_state
from streamdata.errors import StateError
from streamdata.text.packing import TextJsonlProcessFnBuilder
from streamdata.text.tokenizer import tokenize
from tests.text.tiny_tokenizer import save_tiny_tokenizer

Record = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a tiny tokenizer lies."""
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


class Driver:
    """Feeds a stateful function as a lane does: notes its state at the first pull of each burst.

    `cursor` is (record that the burst begins with, its state, outputs given in it).
    """

    def __init__(self, function: Any, records: list[Record], cursor: tuple[int, Any, int] = (0, None, 0)) -> None:
        self._function = copy.copy(function)
        self._records = records
        self._next, self._state, self._skip = cursor
        self._begin, self._given = self._next, 0

    def __iter__(self) -> Iterator[tuple[dict[str, Any], tuple[int, Any, int]]]:
        if self._state is not None:
            self._function.load_state_dict(self._state)
        for output in self._function(self._pull()):
            self._given += 1
            if self._given > self._skip:
                yield output, (self._begin, self._state, self._given)

    def _pull(self) -> Iterator[Record]:
        while True:
            if self._given:
                self._state = json.loads(json.dumps(self._function.state_dict()))
                self._begin, self._given, self._skip = self._next - self._state["rewind"], 0, 0
            if self._next == len(self._records):
                return
            self._next += 1
            yield self._records[self._next - 1]


def run(function: Any, records: list[Record], cursor: Any = (0, None, 0)) -> list[Any]:
    """What is delivered from a cursor on, as (tensors as lists, cursor after)."""
    return [({k: v.tolist() for k, v in row.items()}, after) for row, after in Driver(function, records, cursor)]


def records_of(texts: list[str]) -> list[Record]:
    """Records as a JSONL source gives them."""
    return [{"text": text, "__key__": str(index)} for index, text in enumerate(texts)]


texts_of = st.lists(st.text(st.sampled_from("the catso\n\u00e9"), max_size=25), max_size=10)


@given(texts=texts_of, length=st.integers(1, 24))
def test_packer_resumes_exactly_after_every_row(tokenizer: str, texts: list[str], length: int) -> None:
    """From every cursor, and from those that a resumed run gives, the same rows and the same cursors follow."""
    function = TextJsonlProcessFnBuilder(length, tokenizer)
    whole = run(function, records_of(texts))
    for index, (_, cursor) in enumerate(whole):
        assert run(function, records_of(texts), cursor) == whole[index + 1 :]


@given(texts=texts_of, length=st.integers(1, 24))
def test_packer_loses_and_repeats_no_token(tokenizer: str, texts: list[str], length: int) -> None:
    """All rows together hold every document's tokens, each followed by one end."""
    rows = run(TextJsonlProcessFnBuilder(length, tokenizer), records_of(texts))
    tokens = [token for row, _ in rows for token in row["tokens"]]
    expected = [t for x in texts if x for t in [*tokenize(tokenizer, x, with_special_tokens=False).tolist(), 0]]
    assert tokens[: len(expected)] == expected
    trained = sum(sum(row["loss_mask"]) for row, _ in rows)
    assert trained == max(len(expected) - 1, 0)
    assert len(tokens) - len(expected) < length


def test_packer_rows_are_tensors_of_their_own(tokenizer: str) -> None:
    """Four tensors of one length; writing into one changes no other."""
    (row, _), *_ = Driver(TextJsonlProcessFnBuilder(8, tokenizer), records_of(["the cat sat on the mat"] * 9))
    kinds = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in row.items()}
    assert kinds == {
        "tokens": (torch.int64, (8,)),
        "target_ids": (torch.int64, (8,)),
        "loss_mask": (torch.bool, (8,)),
        "position_ids": (torch.int64, (8,)),
    }
    targets = row["target_ids"].clone()
    row["tokens"].zero_()
    assert torch.equal(row["target_ids"], targets)


def rows_with(labels: str | None, tokenizer: str) -> dict[str, torch.Tensor]:
    """A batch of three rows of 8, of a finite stream; the last one ends with padding."""
    texts = ["the cat sat", "on the mat", "the cat sat on the cat", "mat"]
    function = TextJsonlProcessFnBuilder(8, tokenizer, labels=labels)  # type: ignore[arg-type]
    rows = [row for row, _ in Driver(function, records_of(texts))]
    assert (len(rows), not rows[-1]["loss_mask"][-2]) == (3, True)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def test_labels_come_on_request_only(tokenizer: str) -> None:
    """As tokens of their own, -100 at padding alone; or as the targets."""
    assert "labels" not in rows_with(None, tokenizer)
    shifted, unshifted = (rows_with(labels, tokenizer) for labels in ("shifted", "unshifted"))
    assert torch.equal(shifted["labels"], shifted["target_ids"])
    num_tokens = int(unshifted["loss_mask"].sum()) + 1  # all but the stream's last token have a target
    flat = unshifted["labels"].flatten()
    assert torch.equal(flat[:num_tokens], unshifted["tokens"].flatten()[:num_tokens])
    assert set(flat[num_tokens:].tolist()) == {-100}


def test_a_model_of_transformers_trains_unshifted_labels_on_the_next_token(tokenizer: str) -> None:
    """It shifts them: its loss is that of the targets within the row; of shifted ones it would be another."""
    model = tiny_llama()
    rows = rows_with("unshifted", tokenizer)
    output = model(input_ids=rows["tokens"], labels=rows["labels"])
    next_tokens = cross_entropy(output.logits[:, :-1].flatten(0, 1), rows["target_ids"][:, :-1].flatten())
    assert torch.allclose(output.loss, next_tokens)
    assert not torch.allclose(model(input_ids=rows["tokens"], labels=rows["target_ids"]).loss, next_tokens, rtol=0.01)


def test_a_model_that_takes_shifted_labels_trains_every_target(tokenizer: str) -> None:
    """The first token of the next row too."""
    rows = rows_with("shifted", tokenizer)
    output = tiny_llama()(input_ids=rows["tokens"], labels=rows["labels"], shift_labels=rows["labels"])
    targets = rows["target_ids"][rows["loss_mask"]]
    assert torch.allclose(output.loss, cross_entropy(output.logits[rows["loss_mask"]], targets))


def tiny_llama() -> Any:
    """A model of transformers with two layers, and weights large enough to tell tokens apart."""
    from transformers import LlamaConfig, LlamaForCausalLM  # seconds, which only these tests are to take

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(vocab_size=400, initializer_range=0.5, **sizes)).eval()


@pytest.mark.parametrize("labels", ["Shifted", "", True])
def test_packer_refuses_unknown_labels(labels: Any) -> None:
    """At construction."""
    with pytest.raises(ValueError, match=r"labels is .*, expected one of unshifted, shifted.*\n.*transformers"):
        TextJsonlProcessFnBuilder(8, "any", labels=labels)


def test_packer_state_is_small_json_without_payload(tokenizer: str) -> None:
    """Its size does not grow with what is held."""
    rows = run(TextJsonlProcessFnBuilder(64, tokenizer), records_of(["the cat sat on the mat" * 9] * 99))
    states = [state for _, (_, state, _) in rows if state]
    assert len(states) > 9
    assert all(set(state) == {"rewind", "offset", "max_sequence_length", "tokenizer"} for state in states)
    assert max(len(json.dumps(state)) for state in states) < 100


def test_packer_refuses_the_state_of_another_length(tokenizer: str) -> None:
    """The error says both lengths and how to go on."""
    state = TextJsonlProcessFnBuilder(8, tokenizer).state_dict()
    with pytest.raises(StateError, match=r"max_sequence_length=8, the run has 16\n.*reload_from_url_level=True"):
        TextJsonlProcessFnBuilder(16, tokenizer).load_state_dict(state)


def test_packer_refuses_the_state_of_another_tokenizer_or_field(tokenizer: str, tmp_path: Path) -> None:
    """Its offset would point elsewhere; the same tokenizer in another place is accepted."""
    state = TextJsonlProcessFnBuilder(8, tokenizer).state_dict()
    TextJsonlProcessFnBuilder(8, save_tiny_tokenizer(tmp_path / "same")).load_state_dict(state)
    other = save_tiny_tokenizer(tmp_path / "other", text="quick brown fox")
    with pytest.raises(StateError, match="tokenizer="):
        TextJsonlProcessFnBuilder(8, other).load_state_dict(state)
    with pytest.raises(StateError, match="tokenizer="):
        TextJsonlProcessFnBuilder(8, tokenizer, text_key="body").load_state_dict(state)


@pytest.mark.parametrize("state", [None, [], {}, {"rewind": 1}, {"rewind": -1}, {"rewind": "1"}, {"offset": 1.5}])
def test_packer_refuses_garbage(tokenizer: str, state: Any) -> None:
    """What is no state of a packer is an error, never a fresh start."""
    function = TextJsonlProcessFnBuilder(8, tokenizer)
    whole = {**function.state_dict(), **state} if state else state
    if state == {"rewind": 1}:
        del whole["offset"]
    with pytest.raises(StateError, match="expected counts"):
        function.load_state_dict(whole)


def test_packer_notices_that_a_document_has_changed(tokenizer: str) -> None:
    """A first record shorter than the part of it that was packed is an error."""
    function = TextJsonlProcessFnBuilder(4, tokenizer)
    _, cursor = run(function, records_of(["cat sat on the mat", "the cat sat", "on the mat"]))[1]
    assert cursor[1]["offset"] > 1
    with pytest.raises(ValueError, match="start afresh"):
        run(function, records_of(["o", "o", "o"]), cursor)


def test_packer_names_the_fields_of_a_record_without_text(tokenizer: str) -> None:
    """The error says which field was expected and which there are."""
    with pytest.raises(ValueError, match=r"the record has no field 'text'; it has body\n.*text_key"):
        list(TextJsonlProcessFnBuilder(4, tokenizer)(iter([{"body": "x"}])))


def test_packer_reads_the_field_it_was_given_and_bytes(tokenizer: str) -> None:
    """`text_key` names the field; UTF-8 bytes are text."""
    rows = run(TextJsonlProcessFnBuilder(4, tokenizer, "body"), [{"body": "cat\u00e9".encode()}])
    assert rows == run(TextJsonlProcessFnBuilder(4, tokenizer), [{"text": "cat\u00e9"}])[: len(rows)]


def test_packer_loads_its_tokenizer_on_first_use_only() -> None:
    """Building and pickling it needs no tokenizer; a missing one is an error when it is used."""
    function = pickle.loads(pickle.dumps(TextJsonlProcessFnBuilder(4, "/nowhere/tokenizer")))
    with pytest.raises(OSError, match="nowhere"):
        next(iter(function(iter([{"text": "x"}]))))


def test_copies_of_a_packer_share_nothing(tokenizer: str) -> None:
    """Two lanes in one process each pack their own stream."""
    function = TextJsonlProcessFnBuilder(4, tokenizer)
    lanes = [copy.copy(function)(iter(records_of([text] * 9))) for text in ("the cat", "on mat")]
    alone = [run(function, records_of([text] * 9)) for text in ("the cat", "on mat")]
    for a, b, (row_a, _), (row_b, _) in zip(*lanes, *alone, strict=True):
        assert (a["tokens"].tolist(), b["tokens"].tolist()) == (row_a["tokens"], row_b["tokens"])


def test_packer_refuses_rows_of_no_length() -> None:
    """At construction."""
    with pytest.raises(ValueError, match="max_sequence_length is 0, expected a whole number of at least 1"):
        TextJsonlProcessFnBuilder(0, "any")


def test_packer_loses_no_token_between_shards_and_epochs_and_over_resumes(tokenizer: str, tmp_path: Path) -> None:
    """The rows, side by side, are the endless stream of documents; targets are that stream shifted, beyond rows too."""
    texts = ["the cat", "sat on", "the mat the cat", "o", "on the mat"]
    for shard, part in enumerate((texts[:2], texts[2:])):
        (tmp_path / f"{shard}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))

    def make() -> MergedDataset:
        source: Any = JsonlIterableDataset(str(tmp_path), TextJsonlProcessFnBuilder(7, tokenizer))
        source.name, source.percent = "s", 1
        return MergedDataset([source], shuffle_streaming_subsets=False)

    epoch = [t for x in texts for t in [*tokenize(tokenizer, x, with_special_tokens=False).tolist(), 0]]
    rows, states = [], {}
    while len(rows) * 7 < 3 * len(epoch):
        for row in islice(make().__iter_from__(states), 2):  # stopped and resumed after every two rows
            rows.append(row)
            states = json.loads(json.dumps({**states, **to_state(row)}))
    length, stream = len(rows) * 7, epoch * 9
    assert [token for row in rows for token in row["tokens"].tolist()] == stream[:length]
    assert [target for row in rows for target in row["target_ids"].tolist()] == stream[1 : length + 1]
    assert all(row["loss_mask"].all() for row in rows)
