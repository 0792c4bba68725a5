"""`streamdata show`: what it prints, writes, and how it ends."""

import json

import numpy as np
import pytest

from tests.chats.chat_files import assistant, user, write
from tests.text.chat_templates import CHATML, chat_tokenizer


def test_the_first_samples_are_in_the_order_of_delivery(streamdata, write_recipe):
    """Of the stream, of one source, and of one rank."""
    recipe = write_recipe()
    heads = [line for line in streamdata("show", recipe, "-n", 5).stdout.splitlines() if line.startswith("── ")]
    assert [line.split()[1:3] for line in heads] == [["#0", "a"], ["#1", "a"], ["#2", "b"], ["#3", "a"], ["#4", "a"]]
    alone = streamdata("show", recipe, "-n", 1, "--source", "b").stdout
    assert alone.splitlines()[0].split()[3:] == heads[2].split()[3:]
    assert streamdata("show", recipe, "--rank", 1, "--ranks", 2, "-n", 3).stdout.count("── #") == 3


def test_json_is_one_document(streamdata, write_recipe):
    """In ASCII, with the sources by name, and the step where one was asked for."""
    done = streamdata("show", write_recipe(), "-n", 2, "--step", 4, "--json")
    shown = json.loads(done.stdout)
    assert done.stdout.isascii()
    assert shown["sources"] == [{"name": "a"}, {"name": "b"}]
    first = shown["samples"][0]
    assert (first["step"], first["source"], first["url"][-8:]) == (4, "a", "/a.jsonl")
    assert first["fields"] == [{"name": "value", "kind": "numbers", "type": "int", "text": "38"}]


def test_n_is_how_many_samples_there_are(streamdata, write_recipe, tmp_path):
    """In a terminal, JSON and a page."""
    recipe = write_recipe()
    assert streamdata("show", recipe, "-n", 7).stdout.count("── #") == 7
    assert len(json.loads(streamdata("show", recipe, "--samples", 7, "--json").stdout)["samples"]) == 7
    done = streamdata("show", recipe, "-n", 8, "--html", tmp_path / "page.html")
    assert done.stdout.endswith("page.html: 8 samples, 0.0 MB; open it in a browser\n")
    assert (tmp_path / "page.html").read_text().count("<article") == 8


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--source", "c"], "expected one of a, b"),
        (["--rank", "2", "--ranks", "2"], "rank below --ranks"),
        (["--step", "0"], "'--step'"),
        (["--json", "--html", "x"], "expected one of them"),
    ],
)
def test_what_cannot_be_shown_is_a_message(streamdata, write_recipe, options, says):
    """And no traceback."""
    done = streamdata("show", write_recipe(), *options)
    assert done.exit_code in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.output


def test_a_store_that_names_no_tokenizer_is_shown_as_ids(streamdata, tmp_path):
    """A file of bare tokens in windows."""
    np.save(tmp_path / "tokens.npy", np.arange(2500, dtype=np.uint16))
    done = streamdata("show", tmp_path / "tokens.npy", "--step", 2, "-n", 5)
    assert done.stdout.startswith("── step 2  tokens  index 1\nsequence  int64 (1024)  1,024 tokens\n1024 1025 ")
    assert "── step 3  tokens  index 2\nsequence  int64 (452)" in done.stdout
    assert streamdata("show", tmp_path / "tokens.npy", "--html", tmp_path / "x.html").exit_code == 0


def test_a_chat_is_shown_with_what_is_trained_beside_its_row(streamdata, tmp_path, monkeypatch):
    """An answer that its row masks is not trained."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    tokenizer = chat_tokenizer(tmp_path / "tokenizer", CHATML)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    turns = [user("hi"), assistant("one"), user("and"), assistant("two", loss_mask=0)]
    write(tmp_path / "chats.parquet", [{"messages": turns}] * 2)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "target: streamdata.MergedDataset\nparams:\n  datasets:\n"
        "    - target: streamdata.SFTChatDataset\n      params:\n        config: {max_length: 100}\n"
        f"        data_files: {tmp_path}/chats.parquet\n        tokenizer: {tmp_path}/tokenizer\n"
        "      name: chats\n      percent: 1\n"
    )
    (sample,) = json.loads(streamdata("show", recipe, "-n", 1, "--json").stdout)["samples"]
    (segment,) = sample["fields"][0]["segments"]
    (trained,) = [run for run in segment["runs"] if run.get("trained")]
    assert "".join(trained["pieces"]).startswith("one")
    assert (trained["reason"], segment["runs"][0]["reason"]) == ("trained", "not trained: loss_mask is 0 here")
    assert sample["records"][0]["fields"][0]["segments"][0] == {"role": "user", "text": "hi"}
