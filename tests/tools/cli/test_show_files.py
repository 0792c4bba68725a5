"""`streamdata show` of files without a recipe, and of stores within one; what fits into a terminal's width."""

import json
import re
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from streamdata.tools.cli.messages import Ticker
from tests.shard_files import write_tars
from tests.text.tiny_tokenizer import save_tiny_tokenizer


@pytest.fixture
def files(tmp_path, monkeypatch):
    """One of each kind, of two records."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    write_tars(folder / "tars", [1, 1], images=True)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    chat = json.dumps({"messages": turns}) + "\n"
    texts = {"a.jsonl": '{"text": "a"}\n{"text": "b"}\n', "chats.jsonl": chat * 2, "rows.csv": "text\na\nb\n"}
    texts["array.json"] = '[{"text": "a"}, {"text": "b"}]'
    for name, text in texts.items():
        (folder / name).write_text(text)
    pq.write_table(pa.table({"text": ["a", "b"]}), folder / "rows.parquet")
    for name in ("cats/0.png", "dogs/1.png"):
        (folder / "images" / name).parent.mkdir(parents=True)
        Image.new("RGB", (20, 20), "red").save(folder / "images" / name)
    return folder


def test_progress_is_for_terminals(streamdata, files, monkeypatch):
    """However long it takes, a pipe gets the samples alone."""
    monkeypatch.setattr("streamdata.tools.cli.show.Ticker", partial(Ticker, clock=count(0, 60).__next__))
    done = streamdata("show", files / "a.jsonl")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["a.jsonl", "rows.csv", "rows.parquet", "array.json", "rows"])
def test_records_of_files_are_shown_in_their_order(streamdata, files, name):
    """By the source that reads them; of a folder, too, and no more than there are."""
    if name == "rows":
        (files / name).mkdir()
        (files / "a.jsonl").rename(files / name / "a.jsonl")
    lines = streamdata("show", files / name).stdout.splitlines()
    assert [line for line in lines if line.startswith("text")] == ["text  str  a", "text  str  b"]
    assert sum(line.startswith("── #") for line in lines) == 2


def test_tars_chats_and_images_are_shown_without_a_recipe(streamdata, files):
    """A tar's members, whose sidecar is no record; messages, each by who says it; images by their names."""
    assert streamdata("show", files / "tars").stdout.count("image of 12 × 12 pixels, RGB") == 2
    assert streamdata("show", files / "tars" / "00001.tar").stdout.count("── #") == 1
    assert "user: hi\nassistant: hello\n" in streamdata("show", files / "chats.jsonl", "-n", 1).stdout
    shown = streamdata("show", files / "images").stdout
    assert shown.count("image of 20 × 20 pixels, RGB") == 2
    assert "dogs/1.png" in shown
    assert streamdata("show", files / "images/cats/0.png").stdout.count("── #") == 1


def test_files_have_a_page_and_json_too(streamdata, files, tmp_path):
    """As a recipe has."""
    samples = json.loads(streamdata("show", files / "chats.jsonl", "-n", 1, "--json").stdout)["samples"]
    assert samples[0]["fields"][0]["segments"] == [
        {"role": "user", "text": "hi"},
        {"role": "assistant", "text": "hello"},
    ]
    assert streamdata("show", files / "rows.csv", "--html", tmp_path / "x.html").exit_code == 0
    assert (tmp_path / "x.html").read_text().count("<article") == 2


def test_what_nothing_reads_is_a_message(streamdata, tmp_path):
    """It says which files are read."""
    (tmp_path / "a.txt").write_text("text")
    done = streamdata("show", tmp_path)
    assert done.exit_code == 1
    assert "got a.txt" in done.stderr
    assert "Nor is there JSONL, CSV, parquet, a tar or an image." in done.stderr


@pytest.mark.parametrize("url", ["s3://bucket/web", "https://u:CANARY@host/x.jsonl?sig=CANARY"])
def test_a_url_is_shown_through_a_recipe(streamdata, url):
    """The message says how to get one; it does not take the url for a missing file, nor repeat its secrets."""
    done = streamdata("show", url)
    told = " ".join(re.sub("[│╭╰─╮╯]", " ", done.stderr).split())
    assert done.exit_code == 2
    assert "expected a local path, got a url" in told
    assert "streamdata init 's3://bucket/web/*.tar'" in told
    assert "does not exist" not in told
    assert "CANARY" not in told


@pytest.fixture
def store(streamdata, tmp_path):
    """A store of texts, of a tokenizer that its run names."""
    tokenizer = save_tiny_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "the cat {"sat " * n}"}}\n' for n in range(40)))
    arguments = [tmp_path / "in.jsonl", "-c", "pretrain", "--tokenizer", tokenizer, "-o", tmp_path / "out"]
    assert streamdata("prepare", *arguments, "--workers", 1).exit_code == 0
    return tmp_path / "out"


def recipe_over(store, folder):
    """A mixture of windows of the store."""
    params = {"train_type": "seq", "load_path": str(store), "window_size": 32}
    source = {"target": "streamdata.DatasetFactory.load", "params": params, "name": "s", "percent": 1}
    path = folder / "store.yaml"
    path.write_text(json.dumps({"target": "streamdata.MergedDataset", "params": {"datasets": [source]}}))
    return path


def test_tokens_of_a_store_are_decoded_within_a_recipe(streamdata, store, tmp_path, caplog, monkeypatch):
    """By the tokenizer of the run that wrote it, or by the one that is given; else, or if it is gone, there are ids."""
    recipe = recipe_over(store, tmp_path)
    assert "sat sat sat" in streamdata("show", recipe, "-n", 1).stdout
    with monkeypatch.context() as patch:
        patch.setattr("streamdata.tools.show.streams.load_token_texts", lambda name: Path(name, "gone").read_text())
        assert "pieces" not in streamdata("show", recipe, "-n", 1).stdout
    assert re.search("store '.*/out.*': shown as ids: .*gone", caplog.text)
    np.save(tmp_path / "bare.npy", np.arange(1, 99, dtype=np.uint16))
    bare = recipe_over(tmp_path / "bare.npy", tmp_path)
    assert "pieces" not in streamdata("show", bare, "-n", 1).stdout
    assert "pieces" in streamdata("show", bare, "-n", 1, "--tokenizer", tmp_path / "tokenizer").stdout


def test_full_shows_the_whole_of_each_sample(streamdata, store, tmp_path):
    """In a terminal and as JSON; else both ends are shown."""
    text = f"begin {'x ' * 5000}end"
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": text}) + "\n")
    cut, whole = (streamdata("show", tmp_path / "long.jsonl", *more).stdout for more in ([], ["--full"]))
    assert cut.rstrip().endswith("x end")
    assert len(cut) < 1000
    assert whole.count("x ") == 5000
    (sample,) = json.loads(streamdata("show", tmp_path / "long.jsonl", "--full", "--json").stdout)["samples"]
    assert sample["fields"][0]["text"] == text


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("colours", [{}, {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}])
def test_lines_fit_into_the_terminal(streamdata, store, tmp_path, monkeypatch, columns, colours):
    """Of texts, tokens, chats, and of records in deep folders, of whose place the beginning and the end are shown."""
    for name, value in {"COLUMNS": str(columns), **colours}.items():
        monkeypatch.setenv(name, value)
    deep = tmp_path / "/".join(["a folder with a long name"] * 6)
    deep.mkdir(parents=True)
    chat = [{"role": "user", "content": "word " * 99}]
    (deep / "a.jsonl").write_text(json.dumps({"text": "word " * 99, "messages": chat, "n": list(range(99))}) + "\n")
    commands = [deep], [recipe_over(store, tmp_path), "-n", 9], [deep, "--html", deep / "page.html"]
    shown = "".join(streamdata("show", *command).stdout for command in commands)
    plain = shown.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[2m", "")
    assert max(map(len, plain.splitlines())) <= columns
    assert "a.jsonl 0\n" in plain
    assert "…" in plain.splitlines()[0]


READ_ONE_LINE = """
import os, runpy, threading
reader, writer = os.pipe()
os.dup2(writer, 1), os.close(writer)

def read_and_go():
    try:
        assert os.read(reader, 100).startswith(b"\\xe2\\x94\\x80")
    finally:  # else whoever writes waits for ever
        os.close(reader)

threading.Thread(target=read_and_go).start()
runpy.run_module("streamdata", run_name="__main__")
"""


def test_a_reader_that_goes_away_is_no_error(tmp_path, python):
    """Nothing is said about it."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 3000)
    done = python("-c", READ_ONE_LINE, "show", tmp_path / "a.jsonl", "-n", 3000)
    # Where it takes long, it says how far it is.
    assert [line for line in done.stderr.splitlines() if not line.endswith(" samples")] == []
