"""The presets, from real text to batches of their train type."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from streamdata import PreferenceDataset
from streamdata.errors import RecipeError
from streamdata.prepare import load_config
from streamdata.prepare.finished_runs import manifest_of, summary
from streamdata.stores.datasets.record_datasets import DatasetFactory, dpo_collate, grpo_collate
from streamdata.text.tokenizer import load_tokenizer
from tests.prepare.runs import functions, run, write

CONFIGS = Path(__file__).parents[2] / "configs" / "prepare"
FUNCTIONS = [function for function in functions() if len(function["code"]) < 1500]


def chat(question: str, answer: str) -> list[dict]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def prepared(name: str, records: list[dict], tokenizer: str, folder: Path) -> Path:
    """The output of a preset over these records."""
    run(load_config(name), tokenizer, write(folder / "in.jsonl", records), folder / "out")
    return folder / "out"


def decoded(tokenizer: str, ids: object) -> str:
    return load_tokenizer(tokenizer).decode(ids)


def test_pretrain(tokenizer: str, tmp_path: Path) -> None:
    """Windows over code, whose targets are the next tokens."""
    out = prepared("pretrain", [{"text": function["code"]} for function in FUNCTIONS], tokenizer, tmp_path)
    dataset = DatasetFactory.load("seq", out, 64)
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    assert batch["input_ids"].shape == batch["target_ids"].shape == (4, 64)
    assert (batch["input_ids"][:, 1:] == batch["target_ids"][:, :-1]).all()
    text = "<|end|>".join(function["code"] for function in FUNCTIONS)
    assert text.startswith(decoded(tokenizer, batch["input_ids"].flatten()))


def trained(batch: dict, row: int) -> list[int]:
    """The targets that are trained."""
    return batch["target_ids"][row][batch["loss_mask"][row]].tolist()


def test_instruct(tokenizer: str, tmp_path: Path) -> None:
    """What is trained is the answers, each with its end."""
    records = [
        {"instruction": f"Write {function['name']}.", "input": function["doc"][:40] * (number % 2), "output": "def f()"}
        for number, function in enumerate(FUNCTIONS)
    ]
    out = prepared("instruct", records, tokenizer, tmp_path)
    dataset = DatasetFactory.load("sft", out, 2048)
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    assert batch["input_ids"].shape == batch["position_ids"].shape == (2, 2048)
    for row in range(2):
        answers = decoded(tokenizer, trained(batch, row)).split("<|end|>")
        assert answers == ["def f()"] * (len(answers) - 1) + [""]
        assert len(answers) > 3  # how many fit depends on Python's own texts
    text = decoded(tokenizer, batch["input_ids"].flatten())
    asked, said = text.count("### Instruction:\n"), text.count("### Response:\ndef f()<|end|>")
    assert asked == said > text.count("### Input:\n") > 0


def test_sharegpt(tokenizer: str, tmp_path: Path) -> None:
    """It becomes what the same chats become by role and content."""
    functions = FUNCTIONS[:20]
    sides = [("human", "doc"), ("gpt", "code")]
    records = [
        {"conversations": [{"from": who, "value": function[key]} for who, key in sides], "system": "You write Python."}
        for function in functions
    ]
    for folder in ("gpt", "chat"):
        (tmp_path / folder).mkdir()
    out = prepared("sharegpt", records, tokenizer, tmp_path / "gpt")
    chats = [
        {"messages": chat(function["doc"], function["code"]), "system": "You write Python."} for function in functions
    ]
    expected = prepared("chat", chats, tokenizer, tmp_path / "chat")
    found, same = (DatasetFactory.load("sft", path, 4096)[0] for path in (out, expected))
    assert all((found[key] == same[key]).all() for key in ("input_ids", "target_ids", "loss_mask"))


def test_chat(tokenizer: str, tmp_path: Path) -> None:
    """What the assistant says is trained, with its end of turn."""
    records = [{"messages": chat(function["doc"], function["code"])} for function in FUNCTIONS[:40]]
    records[0] |= {"system": "You write Python.", "tools": [{"type": "function", "function": {"name": "run"}}]}
    out = prepared("chat", records, tokenizer, tmp_path)
    dataset = DatasetFactory.load("sft", out, 4096, documents=True)
    said, text = [], ""
    for batch in DataLoader(dataset, batch_size=1):
        said += decoded(tokenizer, trained(batch, 0)).removesuffix("<|im_end|>").split("<|im_end|>")
        text += decoded(tokenizer, batch["input_ids"][0])
        assert batch["cu_seqlens"][0, -1] == 4096
    assert sorted(said) == sorted(function["code"] for function in FUNCTIONS[:40])
    assert text.count("You write Python.") == text.count('"name": "run"') == 1


def test_preference(tokenizer: str, tmp_path: Path) -> None:
    """Pairs, each with the mask of its answer."""
    records = [{"chosen": chat("Sort.", f["code"]), "rejected": chat("Sort.", "No.")} for f in FUNCTIONS[:9]]
    dataset = DatasetFactory.load("dpo", prepared("preference", records, tokenizer, tmp_path), None)
    assert len(dataset) == 9
    sample = dataset[4]
    assert decoded(tokenizer, sample["chosen"][sample["chosen_mask"]]) == FUNCTIONS[4]["code"] + "<|im_end|>"
    assert decoded(tokenizer, sample["rejected"][sample["rejected_mask"]]) == "No.<|im_end|>"
    batch = next(iter(DataLoader(dataset, batch_size=3, collate_fn=dpo_collate)))
    assert batch["chosen"].shape[0] == 3


def say(role: str, text: str) -> list[dict]:
    return [{"role": role, "content": text}]


ASK, YES, NO = say("user", "Sort."), say("assistant", "Yes."), say("assistant", "No.")
PAIRS = [
    {"chosen": ASK + YES, "rejected": ASK + NO},
    {"prompt": ASK, "chosen": YES, "rejected": NO},
    {"prompt": "Sort.", "chosen": ASK + YES, "rejected": ASK + NO},
    {"prompt": ASK, "chosen": ASK + YES, "rejected": ASK + NO},
    {"chosen": ASK + YES + ASK + NO, "rejected": ASK + YES + ASK + YES + ASK + NO},
    {"prompt": YES, "chosen": ASK + ASK + YES + YES, "rejected": ASK + ASK + YES + NO},
    {"chosen": YES + say("system", "Be good.") + NO, "rejected": NO},
]


def test_preference_is_the_same_offline_and_online(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole chats, prompts of their own, turns that both sides share, roles in any order: ids and masks."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    stored = DatasetFactory.load("dpo", prepared("preference", PAIRS, tokenizer, tmp_path), None)
    for number, record in enumerate(PAIRS):
        pq.write_table(pa.Table.from_pylist([record]), tmp_path / "a.parquet")
        (online,) = PreferenceDataset(str(tmp_path / "a.parquet"), tokenizer, {"pad_mode": "no_padding"})
        for side in ("chosen", "rejected"):
            assert stored[number][side].tolist() == online[f"{side}_input_ids"].tolist()
            assert stored[number][f"{side}_mask"].tolist() == online[f"{side}_loss_mask"].tolist()
    said = [decoded(tokenizer, stored[4][side][stored[4][f"{side}_mask"]]) for side in ("chosen", "rejected")]
    assert said == ["No.<|im_end|>", "Yes.<|im_end|>No.<|im_end|>"]


def test_answers_that_lose_their_end_are_counted(tokenizer: str, tmp_path: Path) -> None:
    """A preset cuts long chats: the summary says how many."""
    records = [{"messages": chat("Say it.", "word " * number)} for number in (3, 9000, 5, 8000)]
    manifest = manifest_of(prepared("chat", records, tokenizer, tmp_path))
    assert manifest is not None
    assert "\n2 sequences were longer than max_seq_len, and lost an end" in summary(manifest)
    (tmp_path / "short").mkdir()
    short = manifest_of(prepared("chat", records[::2], tokenizer, tmp_path / "short"))
    assert short is not None
    assert "lost" not in summary(short)


def test_rollouts(tokenizer: str, tmp_path: Path) -> None:
    """A prompt, its group of responses, and a reward for each."""
    records = [
        {"prompt": chat("Sort.", "")[:1], "responses": ["No.", f["code"], "Yes."], "rewards": [0.0, 0.125, 1]}
        for f in FUNCTIONS[:9]
    ]
    dataset = DatasetFactory.load("grpo", prepared("rollouts", records, tokenizer, tmp_path), None)
    sample = dataset[3]
    assert decoded(tokenizer, sample["prompts"]).endswith("Sort.<|im_end|>\n<|im_start|>assistant\n")
    assert [decoded(tokenizer, row) for row in sample["responses"]] == ["No.", FUNCTIONS[3]["code"], "Yes."]
    assert sample["rewards"].tolist() == [0.0, 0.125, 1.0]
    assert all(mask.all() for mask in sample["masks"])
    batch = next(iter(DataLoader(dataset, batch_size=3, collate_fn=grpo_collate)))
    assert batch["rewards"].shape == (3, 3)


def test_a_preset_is_named_or_read_as_a_file() -> None:
    """The checkout shows them where one looks for configs."""
    for path in CONFIGS.glob("*.yaml"):
        assert load_config(path) == load_config(path.stem)
    with pytest.raises(RecipeError, match=r"(?s)did you mean 'chat'.*chat, instruct, preference, pretrain, rollouts"):
        load_config("chats")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_has_its_test(path: Path) -> None:
    """A new one needs its own."""
    assert f"test_{path.stem}" in globals()
