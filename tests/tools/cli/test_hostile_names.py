"""Names and values of data and recipes that would steer a terminal or fill it: what each command makes of them."""

import io
import json
import tarfile
import unicodedata
from itertools import islice
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streamdata import instantiate_from_yaml, mixed_collate, to_state
from tests.text.chat_templates import chat_tokenizer

EVIL = "\x1b[31mred\x1b]0;title\x07\nnext\r\u202egnp\u200b\u2028"
LONG = "L" * 10_000
COMMANDS = [
    ["check"],
    ["check", "--data", "-j", 1],
    ["check", "--resume"],
    ["plan", "--samples", 20],
    ["profile", "--seconds", 0.1, "--workers", 0],
    ["run", "--batches", 3],
    ["show", "-n", 6],
    ["show", "-n", 6, "--json"],
    ["trace", "states.json", "--step", 1],
    ["trace", "states.json", "--find", f"{EVIL}#{EVIL}"],
]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working directory, with an empty cache."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tar(path: Path, names: list[str]) -> None:
    """One member of each name, the last one twice."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))


def source(kind: str, path: Path, name: str) -> dict:
    """A source of a recipe."""
    return {"target": f"streamdata.{kind}", "params": {"path": [str(path)]}, "name": name, "percent": 1}


@pytest.fixture
def recipe(here) -> Path:
    """Over a tar and lines whose names, keys, fields and values are hostile."""
    write_tar(here / f"{EVIL}.tar", [f"{EVIL}{n}.{EVIL}" for n in range(4)] + [f"{n}{LONG}.txt" for n in range(4)])
    rows = [{EVIL: EVIL, LONG: LONG, "n": n, EVIL + str(n): {EVIL: [EVIL]}} for n in range(8)]
    (here / f"{EVIL}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / f"{EVIL}.meta.jsonl").write_text(json.dumps({"key": EVIL, EVIL: 1}) + "\n")
    sources = [
        source("MetaDistributedWebDataset", here / f"{EVIL}.tar", EVIL),
        source("JsonlIterableDataset", here / f"{EVIL}.jsonl", "b"),
    ]
    path = here / "recipe.yaml"
    path.write_text(json.dumps({"target": "streamdata.MergedDataset", "params": {"datasets": sources}}))
    return path


def assert_harmless(text: str, *, is_cut: bool = True) -> None:
    """No control characters, marks that turn text around or invisible ones; no run of a long name."""
    found = {char for char in set(text) if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")} - {"\n", "\t"}
    assert [line for line in text.splitlines() if found & set(line)] == [] == sorted(found)
    assert not is_cut or [line for line in text.splitlines() if "L" * 101 in line] == []


def test_no_command_obeys_what_it_shows(streamdata, recipe, caplog) -> None:
    """Names of files, members, sources, fields; keys and values."""
    caplog.set_level("DEBUG", "streamdata")
    states = {}
    for batch in islice(DataLoader(instantiate_from_yaml(recipe), 4, collate_fn=mixed_collate), 2):
        states.update(to_state(batch))
    Path("states.json").write_text(json.dumps(states))
    for command, *rest in COMMANDS:
        done = streamdata(command, recipe, *rest)
        assert_harmless(done.output, is_cut=command not in ("show", "trace"))
        assert done.exit_code == (1 if "--find" in rest else 0), (command, rest, done.output, done.exception)
    for more in ([], ["--json"]):
        assert_harmless(streamdata("state", "states.json", *more).output)
    assert_harmless(streamdata("index", str(recipe.parent)).output)
    assert_harmless("\n".join(record.getMessage() for record in caplog.records))


FAULTS = {
    "twice.jsonl": "{" + ", ".join(json.dumps({name: 1})[1:-1] for name in (EVIL, EVIL, LONG, LONG)) + "}",
    "torn.jsonl": json.dumps({EVIL: LONG})[:-9],
    "list.jsonl": "{}\n" + json.dumps([EVIL, LONG]),
    "reserved.jsonl": json.dumps({"__url__": EVIL, EVIL: LONG}),
}


@pytest.mark.parametrize("name", [*FAULTS, "members.tar", "long.tar"])
def test_an_error_neither(streamdata, here, caplog, name) -> None:
    """What is wrong with data is said with what stands there."""
    if name.endswith(".tar"):
        part = EVIL if name == "members.tar" else LONG
        write_tar(here / name, [f"a{part}.txt", f"b{part}.txt", f"a{part}.txt"])
    else:
        (here / name).write_text(FAULTS[name] + "\n")
    kind = "MetaDistributedWebDataset" if name.endswith(".tar") else "JsonlIterableDataset"
    path, params = here / "recipe.yaml", {"datasets": [source(kind, here / name, EVIL)]}
    path.write_text(json.dumps({"target": "streamdata.MergedDataset", "params": params}))
    told = [streamdata("check", path, "--data", "-j", 1), streamdata("run", path, "--batches", 1)]
    assert told[0].exit_code == 1, told[0].output
    for done in told:
        assert_harmless(done.output)
    assert_harmless("\n".join(record.getMessage() for record in caplog.records))


def test_a_preview_of_prepare_neither(streamdata, here) -> None:
    """Of records that are kept, and of those that are not."""
    chat_tokenizer(here / "draft").save_pretrained(here / "saved")
    rows = [{"text": f"some text {EVIL}", EVIL: EVIL}, {"text": 5, EVIL: LONG}, {EVIL: EVIL, LONG: LONG}]
    (here / f"{EVIL}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [f"{here}/{EVIL}.jsonl", "-c", "pretrain", "--tokenizer", here / "saved"]
    for more in (["--dry-run", 3], ["-o", here / "out", "--workers", 1]):
        assert_harmless(streamdata("prepare", *arguments, *more).output)
