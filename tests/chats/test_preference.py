import pytest
import torch

from streamdata import PreferenceDataset
from tests.chats.chat_files import assistant, user, write
from tests.text.chat_templates import encode_chat

ASK, AGAIN = [user("what is it"), assistant("a cat")], [user("so")]
GOOD, BAD = [assistant("good")], [assistant("a user")]


def trained_texts(tokenizer, item):
    """What is trained of both, decoded."""
    sides = ("chosen", "rejected")
    return [tokenizer.decode(item[f"{side}_input_ids"][item[f"{side}_loss_mask"]]) for side in sides]


@pytest.mark.parametrize(
    ("row", "config"),
    [
        ({"chosen": ASK + AGAIN + GOOD, "rejected": ASK + AGAIN + BAD}, {}),
        ({"prompt": ASK + AGAIN, "chosen": GOOD, "rejected": BAD}, {}),
        ({"prompt": ASK + AGAIN, "chosen": ASK + AGAIN + GOOD, "rejected": ASK + AGAIN + BAD}, {}),
        ({"prompt": "what is it", "chosen": ASK + AGAIN + GOOD, "rejected": ASK + AGAIN + BAD}, {}),
        ({"prompt": "", "chosen": ASK + AGAIN + GOOD, "rejected": ASK + AGAIN + BAD}, {}),
        ({"prompt": "else", "chosen": ASK + AGAIN + GOOD, "rejected": ASK + AGAIN + BAD}, {"prompt_key": None}),
        ({"begin": ASK + AGAIN, "chosen": GOOD, "rejected": BAD}, {"prompt_key": "begin"}),
        ({"better": ASK + AGAIN + GOOD, "worse": ASK + AGAIN + BAD}, {"chosen_key": "better", "rejected_key": "worse"}),
    ],
)
def test_a_pair_becomes_tensors_of_both_sides(tmp_path, tokenizer, row, config):
    """Whole conversations or a prompt and its answers; what both begin with is not trained."""
    path = write(tmp_path / "a.parquet", [row])
    (item,) = PreferenceDataset(path, tokenizer, {**config, "max_length": 128})
    keys = ("input_ids", "attention_mask", "position_ids", "loss_mask")
    assert list(item) == [f"{side}_{key}" for side in ("chosen", "rejected") for key in keys]
    assert all(tensor.shape == (128,) for tensor in item.values())
    assert {item["chosen_input_ids"].dtype, item["chosen_loss_mask"].dtype} == {torch.int64, torch.bool}
    assert trained_texts(tokenizer, item) == ["good<|im_end|>", "a user<|im_end|>"]
    ids = item["chosen_input_ids"][item["chosen_attention_mask"].bool()]
    assert ids.tolist() == encode_chat(tokenizer, ASK + AGAIN + GOOD).input_ids.tolist()


def test_a_prompt_without_use_is_an_error(tmp_path, tokenizer):
    """A text that no user says, or a column that is not there: the question would be gone without a word."""
    path = write(tmp_path / "a.parquet", [{"prompt": "else", "chosen": AGAIN + GOOD, "rejected": AGAIN + BAD}])
    with pytest.raises(ValueError, match=r"first user says, 'so', got the text 'else'\n.*prompt_key: null"):
        PreferenceDataset(path, tokenizer)[0]
    with pytest.raises(ValueError, match="messages in 'promt', got None; the row has"):
        PreferenceDataset(path, tokenizer, {"prompt_key": "promt"})[0]


def test_files_may_differ_in_their_prompts(tmp_path, tokenizer):
    """Each row has its own prompt, or none."""
    whole = write(tmp_path / "a.parquet", [{"chosen": AGAIN + GOOD, "rejected": AGAIN + BAD}])
    apart = write(tmp_path / "b.parquet", [{"prompt": AGAIN, "chosen": GOOD, "rejected": BAD}])
    one, two = PreferenceDataset([whole, apart], tokenizer)
    assert all((one[key] == two[key]).all() for key in one)


def test_unpadded_sides_have_their_own_lengths(tmp_path, tokenizer):
    """Each is the encoding of its conversation."""
    path = write(tmp_path / "a.parquet", [{"chosen": ASK + AGAIN + GOOD, "rejected": ASK + AGAIN + BAD}])
    (item,) = PreferenceDataset(path, tokenizer, {"pad_mode": "no_padding"})
    for side, answer in (("chosen", GOOD), ("rejected", BAD)):
        ids = encode_chat(tokenizer, ASK + AGAIN + answer).input_ids
        assert item[f"{side}_input_ids"].tolist() == ids.tolist()


def test_conversations_may_part_early(tmp_path, tokenizer):
    """All that the assistant says from there on is trained."""
    row = {"chosen": AGAIN + GOOD + ASK, "rejected": AGAIN + BAD + ASK}
    (item,) = PreferenceDataset(write(tmp_path / "a.parquet", [row]), tokenizer)
    assert trained_texts(tokenizer, item) == ["good<|im_end|>a cat<|im_end|>", "a user<|im_end|>a cat<|im_end|>"]


def test_a_pair_without_a_difference_is_an_error(tmp_path, tokenizer):
    """It says which side, and where."""
    path = write(tmp_path / "a.parquet", [{"chosen": AGAIN + GOOD, "rejected": AGAIN + GOOD}])
    with pytest.raises(ValueError, match="something to train") as caught:
        PreferenceDataset(path, tokenizer)[0]
    assert "chosen" in caught.value.__notes__[0]
    assert "a.parquet', row 0" in caught.value.__notes__[1]


def test_a_missing_side_and_an_unknown_key_are_errors(tmp_path, tokenizer):
    """With what there is, and the nearest key."""
    path = write(tmp_path / "a.parquet", [{"chosen": AGAIN + GOOD}])
    with pytest.raises(ValueError, match=r"messages in 'rejected', got None; the row has \['chosen'\]"):
        PreferenceDataset(path, tokenizer)[0]
    with pytest.raises(ValueError, match="'chosen_kye', did you mean 'chosen_key'"):
        PreferenceDataset(path, tokenizer, {"chosen_kye": "x"})
