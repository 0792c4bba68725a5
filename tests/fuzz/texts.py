"""Recipes, configurations of `prepare`, and states."""

import contextlib
import json
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

import streamdata
from streamdata import MergedDataset, StreamdataError, instantiate_from_yaml, load_states, save_states, to_state
from streamdata.prepare.config import load_config
from streamdata.recipe.check import check_recipe
from streamdata.states.loading import read_states
from tests.fuzz.case import JSON, Files, Kind
from tests.streams import Numbers, loaded

RECIPE = """
data: &data ["${other.0}", "x${other.1}y"]
copy: *data
train:
  target: streamdata.MergedDataset
  params:
    seed: 4
    datasets:
      - target: streamdata.JsonlIterableDataset
        params: {path: a.jsonl, name: a, percent: 0.5, shuffle_buffer: 10}
      - <<: {percent: [[0, 1], [100, 2]]}
        target: streamdata.JsonlIterableDataset
        params: {path: "${train.params.datasets.0.params.path}", name: b, limits: {line_bytes: 1_000}}
      - include: b.yaml
        percent: 1e0
  max_bad: 3
other: [1, 0x1f, 0b1, 1.5, .inf, ~, 12:30, 2024-01-01, 'text', "é"]
"""
INCLUDED = """
target: streamdata.CsvDataset
params:
  path: a.csv
  name: c
"""
PREPARE = """
train_type: sft
format: bin
packing: bfd
max_packed_len: 128
max_seq_len: 100
sections:
  - {field: text, action: train, template: "{value}!"}
  - {field: answer, action: mask, add_special_tokens: true}
max_bad: 3
"""
_YAML_WORDS = (
    b"&a ", b"*a", b"<<: *a", b"!!python/object:os.system", b"!!binary x", b"!!int x", b"!!float ''", b"? ", b"- ",
    b": ",
    b"{", b"}", b"[" * 300, b"]", b"|\n", b">\n", b"%YAML 1.3\n", b"---\n", b"...\n", b"\t", b"\0", b"\xff",
    b"\xef\xbb\xbf",
    b"${", b"}", b"${a", b"${a:b}", b"${oc.env:HOME}", b"${.b}", b"${...a}", b"${train}", b"${other.0}", b"${${a}}",
    b"$" * 9,
    b"0b_", b"0x_", b"0_", b"1e", b"1" * 5000, b"'", b'"', b"\\x", b'"\\ud800"', b"#", b"@x", b"`", b"include: b.yaml",
    b"target: streamdata.", b"target: os.system", b"params:", b"\xe2\x80\xa8", b"\xc2\x85", b"- *data", b"!<x> ",
    b"? [a]\n: b",
)  # fmt: skip
_RECIPE_LEAVES = (
    "${other}", "${train}", "${data}", "${oc.env:HOME}", 0.5, 10, [[0, 1], [9, 2]], "streamdata.CsvDataset",
    "streamdata.", "os.system", "target", "params", "include", "b.yaml", "a.yaml", "datasets", "percent", "a",
    "/etc/passwd", "!", "*",
)  # fmt: skip


def _parsed(content: bytes) -> Any:
    return yaml.safe_load(content)


def _dumped(tree: Any) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=True, sort_keys=False).encode("utf-8", "surrogatepass")


YAML = (_parsed, _dumped)


def _recipes() -> list[Files]:
    beside = {"a.jsonl": b'{"x": 1}\n' * 3, "a.csv": b"x\n1\n2\n", "b.yaml": INCLUDED.encode()}
    return [{"a.yaml": RECIPE.encode(), **beside}]


def _read_recipe(folder: Path) -> Any:
    """What a check says, and what is built; a recipe that is built has no errors."""
    with contextlib.chdir(folder):
        problems = [str(problem) for problem in check_recipe("a.yaml", allow=["streamdata"])]
        built = instantiate_from_yaml("a.yaml", allow=["streamdata"])
        return problems, [type(part).__name__ for part in (built.values() if isinstance(built, dict) else [built])]


def _configs() -> list[Files]:
    presets = sorted((Path(streamdata.__file__).parent / "prepare" / "presets").glob("*.yaml"))
    return [{"c.yaml": PREPARE.encode()}, *({"c.yaml": path.read_bytes()} for path in presets[:3])]


def _read_config(folder: Path) -> Any:
    return load_config(folder / "c.yaml").model_dump()


def _mixture() -> MergedDataset:
    inner = MergedDataset([Numbers("b", 30)], name="mix", percent=1)
    return MergedDataset([Numbers("a", 40, 2.0), inner], seed=4)


def _states_of(rank: int, size: int) -> dict[str, Any]:
    dataset = _mixture()
    dataset.set_data_parallel(size, rank)
    states: dict[str, Any] = {}
    for batch in islice(loaded(dataset, 0, 2), 5):
        states.update(to_state(batch))
    return states


def _go_on(states: Any) -> list[Any]:
    dataset = _mixture()
    dataset.set_data_parallel(2, 0)
    dataset.set_dataloader_states(states)
    return [[sample["value"] for sample in batch] for batch in islice(loaded(dataset, 0, 2), 3)]


def _plain_states() -> list[Files]:
    merged = {**_states_of(0, 2), **_states_of(1, 2)}
    return [{"a.json": json.dumps(merged).encode()}, {"a.json": json.dumps(_states_of(0, 1)).encode()}]


def _read_plain(folder: Path) -> Any:
    return _go_on(read_states([folder / "a.json"])[0].states)


def _saved() -> list[Files]:
    with TemporaryDirectory() as folder:
        for rank in range(2):
            save_states(folder, _states_of(rank, 2), step=7, rank=rank, size=2)
        files = {f"step-7/rank-{rank}.states": Path(folder, f"step-7/rank-{rank}.states") for rank in range(2)}
        return [{name: path.read_bytes() for name, path in files.items()}]


def _read_saved(folder: Path) -> Any:
    states = load_states(folder)
    return states.step, _go_on(states)


_STATE_LEAVES = (
    "cursor/0/0/0/0/a", "cursor/0/0/0/0/mix.b", "generation/0", "generation/1", "idle/0/1", "batches", "a", "mix",
    "mix.b", "draws", "clock", "epoch", "window", "taken", "pulled", "function", [1, 2, 3, 4], "left_out",
    {"a": [1]}, [0, 0, 0, -1], 2**40, 40, 41,
)  # fmt: skip
_STATE_WORDS = (
    b"NaN", b"Infinity", b"-0", b"1e999", b"1" * 5000, b"[" * 5000, b'"\\ud800"', b"true", b"null", b"[]", b"{}",
)  # fmt: skip
KINDS = [
    Kind("recipe", "a.yaml", _recipes, _read_recipe, tree=YAML, words=_YAML_WORDS, leaves=_RECIPE_LEAVES,
         allowed=(StreamdataError, FileNotFoundError)),
    Kind("prepare-config", "c.yaml", _configs, _read_config, tree=YAML, words=_YAML_WORDS),
    Kind("state-json", "a.json", _plain_states, _read_plain, tree=JSON, words=_STATE_WORDS, leaves=_STATE_LEAVES),
    Kind("state-file", "step-7/rank-1.states", _saved, _read_saved),
]  # fmt: skip
