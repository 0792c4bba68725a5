"""`streamdata check --online`: shards in stores and tokenizers of the hub are looked for, too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers.utils.hub
from typer.testing import Result

from tests.io.servers import s3_server

Streamdata = Callable[..., Result]
JSONL = "streamdata.JsonlIterableDataset"


def mixture(path: Path, sources: list[dict[str, Any]], **params: Any) -> Path:
    """A recipe of these sources."""
    named = [{**source, "name": f"s{number}", "percent": 1} for number, source in enumerate(sources)]
    path.write_text(json.dumps({"target": "streamdata.MergedDataset", "params": {"datasets": named, **params}}))
    return path


@pytest.mark.parametrize("where", ["source", "top", "above an include"])
def test_shards_are_looked_for_as_whoever_reads_them(tmp_path: Path, streamdata: Streamdata, where: str) -> None:
    """By the storage_options of the source, or those of the mixtures above it."""
    with s3_server({"bucket/a.jsonl": b"{}\n"}) as server:
        options = {"endpoint": server.url, "anonymous": True, "region": "nowhere"}
        own = {"storage_options": options} if where == "source" else {}
        top = {} if where == "source" else {"storage_options": options}
        sources = [{"target": JSONL, "params": {"path": f"s3://bucket/{name}.jsonl", **own}} for name in ("a", "gone")]
        recipe = mixture(tmp_path / "r.yaml", sources, **({} if where == "above an include" else top))
        if where == "above an include":
            recipe = mixture(tmp_path / "top.yaml", [{"include": str(recipe)}], **top)
        assert streamdata("check", recipe).exit_code == 0, "nobody is asked without --online"
        done = streamdata("check", recipe, "--online")
    assert (done.exit_code, done.stdout.count("error: ")) == (1, 1), done.stdout
    assert "params.datasets[1].params.path" in done.stdout
    assert "s3://bucket/gone.jsonl" in done.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"access_key_id": "a"}, "expected known names"),
        ({"endpoint": "store:9000"}, "endpoint: expected a url of http or https"),
    ],
)
@pytest.mark.parametrize("is_own", [True, False])
def test_options_of_a_store_are_checked(
    tmp_path: Path, streamdata: Streamdata, options: dict[str, Any], expected: str, is_own: bool
) -> None:
    """Of a source and of a mixture, without asking anybody."""
    own = {"storage_options": options} if is_own else {}
    source = {"target": JSONL, "params": {"path": "s3://bucket/a.jsonl", **own}}
    done = streamdata(
        "check", mixture(tmp_path / "r.yaml", [source], **({} if is_own else {"storage_options": options}))
    )
    assert done.exit_code == 1
    assert f"storage_options: {expected}" in " ".join(done.stdout.split())


def test_a_hub_that_cannot_be_reached_is_one_message(
    tmp_path: Path, streamdata: Streamdata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the line of the tokenizer; it is asked by the name that the recipe has."""
    asked: list[str] = []

    def cached_file(name: str, _: str) -> None:
        asked.append(name)
        raise OSError("We couldn't connect\nCheck your connection.")

    monkeypatch.setattr(transformers.utils.hub, "cached_file", cached_file)
    (tmp_path / "a.jsonl").write_text("{}\n")
    packer = {"target": "streamdata.TextJsonlProcessFnBuilder", "params": {"tokenizer_name": "org/x"}}
    packer["params"]["max_sequence_length"] = 8
    source = {"target": JSONL, "params": {"path": str(tmp_path / "a.jsonl"), "process_fn": packer}}
    recipe = mixture(tmp_path / "r.yaml", [source])
    assert streamdata("check", recipe).exit_code == 0
    done = streamdata("check", recipe, "--online")
    assert (done.exit_code, asked, len(done.stdout.splitlines())) == (1, ["org/x"], 3)
    assert "process_fn.params.tokenizer_name" in done.stdout
