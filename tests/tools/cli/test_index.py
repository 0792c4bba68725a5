"""`streamdata index`: manifests made, brought up to date, and compared."""

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from tests.io.servers import ObjectServer, s3_server
from tests.shard_files import write_jsonl, write_tars

Streamdata = Callable[..., Result]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path / "cache"))


def test_each_path_gets_its_manifest_and_a_summary(streamdata: Streamdata, tmp_path: Path) -> None:
    """Or all get one where it is told."""
    one, two = (write_tars(tmp_path / name, [3, 2]) for name in ("one", "two"))
    done = streamdata("index", one, two, "-j", 1)
    assert (done.exit_code, done.stdout.count("4 files"), done.stdout.count("5 records")) == (0, 2, 2), done.output
    both = tmp_path / "both.manifest"
    done = streamdata("index", one, two, "-o", both)
    assert (done.exit_code, "8 files" in done.stdout, both.exists()) == (0, True, True), done.output


def test_compressed_shards_are_counted(streamdata: Streamdata, tmp_path: Path) -> None:
    """Whatever is not damaged; what is, is named."""
    folder = Path(write_jsonl(tmp_path / "a", [3, 2, 4]))
    for path in sorted(folder.iterdir())[1:]:
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    done = streamdata("index", folder)
    assert (done.exit_code, "3 files" in done.stdout, "9 records" in done.stdout) == (0, True, True), done.output
    assert streamdata("index", "--check", folder).exit_code == 0
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.name.encode())[:-9])
    done = streamdata("index", folder)
    assert (done.exit_code, f"{path}.gz" in done.stderr, "damaged or incomplete" in done.stderr) == (1, True, True)


def test_check_names_each_shard_that_differs(streamdata: Streamdata, tmp_path: Path) -> None:
    """And exits 1; after a second index all is well."""
    folder = Path(write_tars(tmp_path / "tars", [3, 2, 1, 1]))
    assert streamdata("index", folder).exit_code == 0
    done = streamdata("index", "--check", folder)
    assert (done.exit_code, done.stdout) == (0, f"{folder}/streamdata.manifest: nothing differs\n")
    os.utime(folder / "00000.tar", ns=(1, 1))
    (folder / "00001.tar").write_bytes((folder / "00001.tar").read_bytes() + bytes(512))
    (folder / "00002.tar").unlink()
    (folder / "00004.tar").write_bytes((folder / "00003.tar").read_bytes())
    done = streamdata("index", "--check", folder)
    assert done.exit_code == 1
    said = ["00000.tar: it was modified", "00001.tar: expected 10240 bytes, got 10752", "00002.tar: it is gone",
            "00004.tar: the manifest does not name it", "5 differ"]  # fmt: skip
    assert [text for text in said if text not in done.stdout] == []  # the fifth is the sidecar of the one that is gone
    assert streamdata("index", folder).exit_code == 0
    assert streamdata("index", "--check", folder).exit_code == 0


def test_a_manifest_that_is_damaged_is_named_by_check(streamdata: Streamdata, tmp_path: Path) -> None:
    """And an index that is missing or cut short; index makes each anew."""
    folder = Path(write_tars(tmp_path / "tars", [3], sidecars=False))
    streamdata("index", folder)
    path = folder / "streamdata.manifest"
    data = path.read_bytes()
    for damage in (Path.unlink, lambda index: index.write_bytes(index.read_bytes()[:-1])):
        damage(folder / ".00000.tar.tar.index")
        done = streamdata("index", "--check", folder)
        assert (done.exit_code, "00000.tar: its index 'tar' is missing" in done.stdout) == (1, True)
        assert streamdata("index", folder).exit_code == 0
        assert streamdata("index", "--check", folder).exit_code == 0
    path.write_bytes(data[:40] + b"x" + data[41:])
    done = streamdata("index", "--check", folder)
    assert (done.exit_code, "error: manifest" in done.stderr) == (1, True)
    assert (streamdata("index", folder).exit_code, path.read_bytes()) == (0, data)


def test_what_is_no_shard_is_a_message(streamdata: Streamdata, tmp_path: Path) -> None:
    """No traceback: a folder without shards, a check without a manifest, an output of another name."""
    (tmp_path / "empty").mkdir()
    done = streamdata("index", tmp_path / "empty")
    assert (done.exit_code, "expected a directory of shards" in done.stderr) == (1, True)
    folder = write_tars(tmp_path / "tars", [1])
    done = streamdata("index", "--check", folder)
    assert (done.exit_code, "expected a manifest" in done.stderr) == (1, True)
    assert streamdata("index", folder, "-o", "x.json").exit_code == 2


def test_a_place_that_cannot_be_written_is_said_before_anything_is_indexed(
    streamdata: Streamdata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With where else it may be put."""
    folder = write_tars(tmp_path / "tars", [1])
    monkeypatch.setattr("streamdata.shards.index.make_manifest._build", None)
    (tmp_path / "a.manifest").mkdir()
    for output, got in ((tmp_path / "none" / "x.manifest", "no such folder"), (tmp_path / "a.manifest", "a folder")):
        done = streamdata("index", folder, "-o", output)
        assert (done.exit_code, got in done.stderr, "--output" in done.stderr) == (1, True, True), done.output
    monkeypatch.setattr(os, "access", lambda *_: False)  # of root it says nothing
    done = streamdata("index", folder)
    assert (done.exit_code, "no permission" in done.stderr, "--output" in done.stderr) == (1, True, True), done.output


@pytest.mark.parametrize("name", ["a\nb.tar", "\n.tar", "b\\c.tar"])
def test_a_name_that_a_manifest_cannot_keep_is_refused(streamdata: Streamdata, tmp_path: Path, name: str) -> None:
    """Nothing is published that could not be read."""
    folder = Path(write_tars(tmp_path / "tars", [1], sidecars=False))
    (folder / "00000.tar").rename(folder / name)
    done = streamdata("index", folder)
    assert (done.exit_code, "Rename the file" in done.stderr) == (1, True), done.output
    assert not (folder / "streamdata.manifest").exists()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A store that wants signatures, with two shards; the profile `ours` has its keys."""
    config = tmp_path / "aws"
    config.write_text("[profile ours]\naws_access_key_id = one\naws_secret_access_key = SECRET\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    folder = Path(write_tars(tmp_path / "tars", [3, 2]))
    with s3_server({f"bucket/d/{path.name}": path.read_bytes() for path in folder.iterdir()}) as server:
        server.secret = "SECRET"
        yield server


def test_a_manifest_is_published_beside_the_shards_in_a_store(streamdata: Streamdata, store: ObjectServer) -> None:
    """After the indexes, signed by what the profile says; a second index reads the list and the manifest alone."""
    settings = ("--endpoint", store.url, "--profile", "ours", "--region", "eu-1")
    done = streamdata("index", "s3://bucket/d", *settings)
    assert (done.exit_code, "s3://bucket/d/streamdata.manifest: 4 files" in done.stdout) == (0, True), done.output
    written = [one.path.removeprefix("bucket/d/") for one in store.log if one.method == "PUT"]
    kinds = ("join", "join-id", "join-key", "tar")
    assert set(written[:-1]) == {f".0000{n}.tar.{kind}.index" for n in range(2) for kind in kinds}
    assert written[-1] == "streamdata.manifest"
    assert all("/eu-1/s3/" in one.headers["authorization"] for one in store.log)
    store.log.clear()
    assert streamdata("index", "s3://bucket/d", *settings).exit_code == 0
    asked = [(one.method, one.path) for one in store.log]
    assert set(asked) == {("GET", "bucket/"), ("GET", "bucket/d/streamdata.manifest")}
    assert asked.count(("GET", "bucket/")) == 1  # for both kinds of shards, and their sidecars
    assert streamdata("index", "--check", "s3://bucket/d", *settings).exit_code == 0
    store.objects["bucket/d/00001.tar"] += bytes(512)
    done = streamdata("index", "--check", "s3://bucket/d", *settings)
    assert (done.exit_code, "00001.tar: expected 10240 bytes, got 10752" in done.stdout) == (1, True), done.output


def test_what_the_environment_says_of_a_store_is_taken(
    streamdata: Streamdata, store: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a manifest may be put elsewhere in the store."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_PROFILE", "ours")
    done = streamdata("index", "s3://bucket/d/*.tar", "-o", "s3://bucket/other.manifest")
    assert (done.exit_code, "bucket/other.manifest" in store.objects) == (0, True), done.output


def test_what_cannot_be_published_is_said_with_what_to_do(streamdata: Streamdata, store: ObjectServer) -> None:
    """Of a web server before anything is read; of a store without permission; of settings that are none."""
    store.secret = ""
    tar = f"{store.url}/bucket/d/00000.tar"
    done = streamdata("index", tar)
    assert (done.exit_code, "got a web server" in done.stderr, "--output" in done.stderr) == (1, True, True)
    assert "GET" not in [one.method for one in store.log if one.headers.get("range") not in (None, "bytes=0-0")]
    store.fault = lambda request: "403 AccessDenied" if request.method == "PUT" else None
    done = streamdata("index", "s3://bucket/d", "--endpoint", store.url, "--anonymous")
    assert (done.exit_code, "no permission" in done.stderr, "--output" in done.stderr) == (1, True, True)
    assert "Authorization" not in str(store.log[-1].headers).title()
    done = streamdata("index", "s3://bucket/d", "--endpoint", "here")
    assert (done.exit_code, "endpoint: expected a url" in done.stderr) == (1, True), done.output
