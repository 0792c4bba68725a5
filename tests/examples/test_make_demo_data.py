import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from examples import make_demo_data
from streamdata.sources.functions.images import open_image
from streamdata.text.image_text_pairs import ImageTextPairProcessFnBuilder
from streamdata.text.tokenizer import load_tokenizer


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_tile_has_a_line_and_becomes_a_sample(demo_data: Path) -> None:
    """A sidecar holds exactly its shard's keys, in order; image and caption become tensors."""
    for shard in sorted((demo_data / "tiles").glob("*.tar")):
        with tarfile.open(shard) as tar:
            names = tar.getnames()
            data = tar.extractfile(names[0])
            assert data is not None
            image = data.read()
        facts = lines(shard.with_suffix(".meta.jsonl"))
        assert [name.partition(".")[0] for name in names] == [fact["key"] for fact in facts]
        record = {names[0].partition(".")[2]: image, "caption": facts[0]["caption"]}
        (sample,) = ImageTextPairProcessFnBuilder(96, 64, str(demo_data / "tokenizer"))(iter([record]))
        assert tuple(sample["img"].shape) == (3, 96, 96)


def test_every_crop_is_an_image(demo_data: Path) -> None:
    """The paths in crops.jsonl lead from where it lies to images of 256 pixels."""
    crops = lines(demo_data / "crops.jsonl")
    assert len(crops) > 200
    assert {open_image(demo_data / crop["imagepath"]).size for crop in crops[::20]} == {(256, 256)}


def test_tokenizer_spells_the_text_and_knows_its_end(demo_data: Path) -> None:
    """It loads offline, and a document's ids decode to the document."""
    tokenizer = load_tokenizer(str(demo_data / "tokenizer"))
    text = lines(demo_data / "code" / "00003.jsonl")[0]["text"]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text) / 2
    assert tokenizer.eos_token == "<|endoftext|>"


def test_text_is_real_and_enough(demo_data: Path) -> None:
    """Thousands of functions and docstrings, each with its place in the standard library; here of a third of it."""
    documents = [
        line for path in sorted(demo_data.glob("*/*.jsonl")) if "meta" not in path.name for line in lines(path)
    ]
    assert sum(len(document["text"]) for document in documents) > 1_000_000
    assert {"ArgumentParser", "SharedMemory", "heappush"} <= {document["name"] for document in documents}
    assert all(document["text"] and document["module"] for document in documents)


def test_a_second_run_leaves_the_data_as_it_is(demo_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Complete data of the same sources is not written again."""
    before = (demo_data / "manifest.json").stat().st_ino
    make_demo_data.main([str(demo_data)])
    assert "left as it is" in capsys.readouterr().out
    assert (demo_data / "manifest.json").stat().st_ino == before


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-written data is not taken for whole."""

    def write_half(root: Path) -> dict[str, int]:
        (root / "code").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(make_demo_data, "write_all", write_half)
    with pytest.raises(KeyboardInterrupt):
        make_demo_data.main([str(tmp_path / "demo_data")])
    assert list(tmp_path.iterdir()) == []


def test_data_of_other_sources_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the script or its sources the directory is written anew, whole."""
    monkeypatch.setattr(make_demo_data, "write_all", lambda root: (root / "new").mkdir() or {"things": 1})
    target = tmp_path / "demo_data"
    target.mkdir()
    (target / "manifest.json").write_text('{"made_by": "an older one", "counts": {}}')
    make_demo_data.main([str(target)])
    assert sorted(path.name for path in target.iterdir()) == ["manifest.json", "new"]
    assert [path.name for path in tmp_path.iterdir()] == ["demo_data"]


def test_somebody_elses_directory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that the script did not write is an error."""
    monkeypatch.setattr(make_demo_data, "write_all", lambda _: {"things": 1})
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(SystemExit, match="not written by this script"):
        make_demo_data.main([str(tmp_path)])
    assert (tmp_path / "thesis.txt").read_text() == "precious"
