"""Tokens of samples: what is trained, what is padding, where documents begin."""

import numpy as np
import pytest
import torch

from streamdata.tools.show.model import ShownField
from streamdata.tools.show.tokens import TokenTexts, load_token_texts, target_summary, tokens_of
from tests.text.tiny_tokenizer import save_tiny_tokenizer


class Letters:
    """A tokenizer of one letter for each id; 0 is both the end and the padding."""

    pad_token_id = eos_token_id = 0

    def decode(self, ids):
        return "".join("." if number == 0 else chr(96 + number) for number in ids)


TEXTS = TokenTexts(Letters())


def told(field: ShownField) -> list[str]:
    """Segments: «trained», masked, padding by its number, and what is left out by its own."""
    signs = {True: "«{}»", False: "{}", None: "{}"}

    def of(run):
        return f"<{run.padding}>" if run.padding else f"…{run.cut}…" if run.cut else signs[run.trained].format(run.text)

    return ["".join(map(of, segment.runs)) for segment in field.segments]


def field_of(sample: dict, name: str = "input_ids", limit: int = 100) -> ShownField:
    """A field of tokens, as it is shown."""
    return tokens_of(sample, name).field(name, sample[name], TEXTS, limit)


def shown(sample: dict, name: str = "input_ids", limit: int = 100) -> list[str]:
    """What is shown of a field of tokens."""
    return told(field_of(sample, name, limit))


def test_a_mask_of_tokens_is_theirs_and_one_beside_targets_is_of_the_next_token():
    """As datasets of chats have it, and as packed rows and stores have it."""
    ids, mask = torch.tensor([1, 2, 3, 4]), torch.tensor([False, True, True, False])
    assert shown({"input_ids": ids, "loss_mask": mask}) == ["a«bc»d"]
    targets = torch.tensor([2, 3, 4, 5])
    assert shown({"input_ids": ids, "loss_mask": mask, "target_ids": targets}) == ["ab«cd»"]


def test_labels_say_what_is_trained_shifted_or_not():
    """-100 is not trained; targets that follow from the tokens are said in words."""
    sample = {"input_ids": np.array([1, 2, 3, 4]), "labels": np.array([-100, -100, 3, 4])}
    assert shown(sample) == ["ab«cd»"]
    assert target_summary(sample, "labels") == "as input_ids, -100 at 2"
    sample["labels"] = np.array([-100, 3, 4, -100])
    assert shown(sample) == ["ab«cd»"]
    assert target_summary(sample, "labels") == "as input_ids, one token later, -100 at 2"


def test_each_side_of_a_pair_has_its_own_mask():
    """By the beginning of its name, or by its end."""
    sample = {"chosen_input_ids": [1, 2], "chosen_loss_mask": np.array([0, 1]), "rejected_loss_mask": np.array([1, 0])}
    assert shown(sample, "chosen_input_ids") == ["a«b»"]
    assert shown({"rejected": [1, 2], "rejected_mask": np.array([1, 0])}, "rejected") == ["«a»b"]


def test_documents_of_a_row_are_segments_and_padding_is_counted():
    """By positions that begin anew, or by `cu_seqlens`; the end of the last document is no padding."""
    ids = np.array([1, 2, 0, 3, 0, 0, 0, 0])
    assert shown({"input_ids": ids, "position_ids": np.array([0, 1, 2, 0, 1, 0, 1, 2])}) == ["ab.", "c.", "<3>"]
    assert shown({"input_ids": ids, "cu_seqlens": np.array([0, 3, 8])}) == ["ab.", "c.<3>"]
    padded = {"cu_seqlens": np.array([0, 2, 5]), "cu_seqlens_padded": np.array([0, 3, 8])}
    assert shown({"input_ids": ids, **padded}) == ["ab.", "c.<3>"]
    field = field_of({"tokens": ids, "position_ids": np.array([0, 1, 2, 0, 1, 0, 1, 2])}, "tokens")
    assert field.summary == "8 tokens, 2 documents, 3 padding"


def test_an_attention_mask_says_what_is_padding():
    """At either end."""
    sample = {"input_ids": np.array([7, 7, 1, 2]), "attention_mask": np.array([0, 0, 1, 1])}
    assert shown(sample) == ["<2>ab"]


@pytest.mark.parametrize("said", [{}, {"attention_mask": np.array([0, 0, 0, 1, 1])}])
def test_positions_of_padding_begin_no_documents(said):
    """Of a prompt they are 0 before it, and so may they be behind a text: that is one run of padding."""
    sample = {"input_ids": np.array([0, 0, 0, 1, 2]), "position_ids": np.array([0, 0, 0, 0, 1]), **said}
    assert shown(sample) == ["<3>ab"]
    assert field_of(sample).summary == "5 tokens, 3 padding"
    turned = {"position_ids": np.array([0, 1, 0, 0, 0]), **{name: mask[::-1] for name, mask in said.items()}}
    assert shown({"input_ids": np.array([1, 2, 0, 0, 0]), **turned}) == ["ab", "<3>"]


def test_documents_behind_padding_are_segments():
    """The first of them begins no second one."""
    positions = np.array([0, 0, 0, 1, 0, 1])
    field = field_of({"input_ids": np.array([0, 0, 1, 2, 3, 4]), "position_ids": positions})
    assert (told(field), field.summary) == (["<2>ab", "cd"], "6 tokens, 2 documents, 2 padding")


def test_long_sequences_are_cut_in_each_document():
    """So that the borders of all are seen; what is missing is counted."""
    positions = np.concatenate([np.arange(100), np.arange(4)])
    field = field_of({"tokens": np.ones(104, int), "position_ids": positions}, "tokens", 32)
    assert told(field) == ["a" * 14 + "…72…" + "a" * 14, "a" * 4]
    assert field.counts["cut"] == 72


def test_the_end_of_each_answer_is_shown_with_its_stop_token():
    """However long prompts and answers are, in one sequence; of thousands those in the middle are left out together."""
    turns = [([2] * 500, 0), ([3] * 500 + [4], 1), ([2] * 500, 0), ([3] * 400 + [4], 1)]
    ids = np.array([number for some, _ in turns for number in some])
    mask = np.array([trained for some, trained in turns for _ in some])
    (text,) = shown({"input_ids": ids, "loss_mask": mask}, limit=40)
    assert text.count("«cccc" + "d»") == 2
    assert text.endswith("…391…«ccccd»")
    many = field_of({"input_ids": np.tile(ids, 50), "loss_mask": np.tile(mask, 50)}, limit=60)
    assert told(many)[0].endswith("d»")
    assert many.counts["cut"] + sum(len(run.ids) for run in many.segments[0].runs) == 50 * len(ids)


def test_a_token_without_a_text_is_shown_by_its_number():
    """As some stop tokens are."""

    class Silent(Letters):
        def decode(self, ids):
            return super().decode(number for number in ids if number != 9)

    assert TokenTexts(Silent()).pieces([1, 9]) == ("a", "<9>")


def test_each_masked_token_has_its_reason():
    """The first one has no token before it."""
    sample = {"input_ids": [1, 2, 3], "loss_mask": np.array([0, 1, 1]), "target_ids": [2, 3, 4]}
    assert field_of(sample).reasons == {
        "not trained: no token before it predicts it": 1,
        "not trained: loss_mask is 0 here": 1,
        "trained": 1,
    }


@pytest.mark.parametrize("value", ["text", 7, [], ["a"], [1, 2.5], np.zeros(3), np.zeros((2, 2), int), None])
def test_what_is_no_sequence_of_tokens_is_none(value):
    """Whatever its name says."""
    assert tokens_of({"input_ids": value}, "input_ids") is None


def test_pieces_keep_spaces_and_whole_characters(tmp_path):
    """Of a character of several tokens the first has it."""
    save_tiny_tokenizer(tmp_path)
    texts = load_token_texts(str(tmp_path))
    ids = texts._tokenizer.encode("the cat 東", None, with_special_tokens=False)
    pieces = texts.pieces(ids)
    assert "".join(pieces) == "the cat 東"
    assert pieces[-3:] == ("東", "", "")
    assert texts.pieces([-100]) == ("\ufffd",)
