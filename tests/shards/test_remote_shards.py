"""Shards in stores: settings, signed urls, sidecars, processes of all kinds, and what goes wrong in a run."""

import gzip
import multiprocessing
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from streamdata import JsonlIterableDataset, MetaDistributedWebDataset
from streamdata.errors import ShardError
from streamdata.io.remote import requests
from streamdata.io.remote.addresses import StorageOptions
from streamdata.io.remote.requests import DeadHostError, DeniedError, GoneError
from streamdata.shards import sequential
from streamdata.shards.jsonl.shards import JsonlShards
from streamdata.shards.listing import JSONL_SUFFIXES, TAR_SUFFIXES
from streamdata.shards.sequential import SequentialJsonl, SequentialTar
from streamdata.shards.urls import expand, find_shards
from tests.io.child import numbers
from tests.io.servers import http_server, s3_server

LINES = b"".join(b'{"n": %d}\n' % number for number in range(100))
OBJECTS = {f"bucket/data/{name}": LINES for name in ("0.jsonl", "1.jsonl", "deep/2.jsonl", ".hidden/3.jsonl", "x.txt")}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Waits of some hundredths of a second instead of minutes."""
    monkeypatch.setattr(requests, "DEADLINE_S", 0.5)
    monkeypatch.setattr(requests, "_FIRST_WAIT_S", 0.002)
    monkeypatch.setattr(requests, "_LONGEST_WAIT_S", 0.02)


@pytest.fixture
def bucket():
    """A server that has the objects, and the options that lead to it."""
    with s3_server(OBJECTS) as server:
        yield server, StorageOptions(endpoint=server.url, anonymous=True)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("s3://bucket/data", ["0", "1", "deep/2"]),
        ("s3://bucket/data/*.jsonl", ["0", "1"]),
        ("s3://bucket/**/*.jsonl", ["0", "1", "deep/2"]),
        ("s3://bucket/*/*/*.jsonl", ["deep/2"]),
        ("s3://bucket/data/d*", ["deep/2"]),
        ("s3://bucket/data/{0..1}.jsonl", ["0", "1"]),
    ],
)
def test_folders_globs_and_braces_of_a_bucket(bucket, pattern, names):
    """By the rules of local ones."""
    server, options = bucket
    assert expand(pattern, JSONL_SUFFIXES, None, options) == [f"s3://bucket/data/{name}.jsonl" for name in names]
    assert len(server.log) <= 3


def test_a_folder_of_a_bucket_is_listed_once(bucket):
    """To know that it is one and what is in it: a page of the list per thousand files is a request."""
    server, options = bucket
    server.page_size = 2
    expand("s3://bucket/data", JSONL_SUFFIXES, None, options)
    assert server.counts == {"GET": 3}  # of five files


def test_folders_of_a_web_server_are_its_links():
    """Of pages, as web servers make them."""
    page = '<html><a href="../">up</a> <a href="0.jsonl">0</a> <A class=x HREF="a%20b/">d</A> <a href="?C=N">sort</a>'
    with http_server({"d/": page.encode(), "d/a b/": b"<a href='1.jsonl'>", "d/0.jsonl": LINES}) as server:
        found = expand(f"{server.url}/d/", JSONL_SUFFIXES)
        assert found == [f"{server.url}/d/0.jsonl", f"{server.url}/d/a%20b/1.jsonl"]


@pytest.mark.parametrize("context", ["here", "fork", "forkserver"])
def test_a_process_reads_by_the_options_of_its_shards(bucket, context):
    """However it was started, also where the parent has read before."""
    _server, options = bucket
    shards = JsonlShards(expand("s3://bucket/data/*.jsonl", JSONL_SUFFIXES, None, options))
    assert numbers(shards) == [*range(100)] * 2
    if context != "here":
        with multiprocessing.get_context(context).Pool(1) as pool:
            assert pool.apply_async(numbers, (shards,)).get(60) == [*range(100)] * 2
        assert numbers(shards) == [*range(100)] * 2


def test_a_start_makes_one_look_and_one_pass_per_shard_and_a_window_one_request_each(bucket):
    """A second start looks once; each range has its precondition."""
    server, options = bucket
    urls = expand("s3://bucket/data/{0..1}.jsonl", JSONL_SUFFIXES, None, options)
    for counts in ({"HEAD": 2, "GET": 2}, {"HEAD": 2}):
        server.log.clear()
        shards = JsonlShards(urls)
        assert server.counts == counts
    server.log.clear()
    numbers(shards)
    assert server.counts == {"GET": 2}
    assert {request.headers["if-match"] for request in server.log} == {server.tag_of(LINES)}


@pytest.mark.parametrize("kind", [JsonlShards, SequentialJsonl])
def test_what_happens_to_a_shard_in_a_run_is_an_error_that_names_it(bucket, kind):
    """It is replaced, removed, forbidden; never a wrong record."""
    server, options = bucket
    shards = kind(expand("s3://bucket/data/{0..1}.jsonl", JSONL_SUFFIXES, None, options))
    read = (lambda: numbers(shards)) if kind is JsonlShards else lambda: [*shards.stream(0), *shards.stream(1)]
    read()
    server.objects["bucket/data/1.jsonl"] = LINES[::-1]
    with pytest.raises(ShardError, match=r"shard 's3://bucket/data/1\.jsonl': it was replaced"):
        read()
    server.fault = lambda request: "403" if "1.jsonl" in request.path else None
    with pytest.raises(DeniedError, match=r"1\.jsonl': bytes 0 to .*credentials expired or no permission"):
        read()
    server.fault = lambda _: None
    del server.objects["bucket/data/1.jsonl"]
    with pytest.raises(GoneError, match=r"1\.jsonl': bytes 0 to .*404"):
        read()


def test_a_signed_url_is_known_by_what_it_names(cache):
    """Another signature finds the same index, and none is seen in samples, messages or descriptions."""
    with http_server({"a/0.jsonl": LINES}) as server:
        for signature in ("SECRET1", "SECRET2"):
            source = JsonlIterableDataset(f"{server.url}/a/0.jsonl?X-Amz-Signature={signature}").source
            shards = source.shards
            assert shards.urls == [f"{server.url}/a/0.jsonl"]
            window = shards.window(np.array([0]), np.array([0]), np.array([2]))
            records = list(window.take([1, 0]))
            assert [type(record["__url__"]) for record in records] == [str, str]
            assert b"SECRET" not in pickle.dumps(records)
            assert "SECRET" not in source.describe(shuffle=True) + repr(vars(shards))
            assert all("SECRET" in request.query for request in server.log)
            server.log.clear()
        assert len(list(cache.rglob("*.index"))) == 1
        assert not any(b"SECRET" in path.read_bytes() for path in cache.rglob("*.index"))


@pytest.mark.parametrize("path", ["http://u:SECRET@h/{0.jsonl?s=SECRET", ["http://u:SECRET@h/0.jsonl?s=SECRET", 3]])
def test_patterns_that_are_refused_are_shown_without_secrets(path):
    """However they are wrong."""
    with pytest.raises(ValueError, match=r"^shards: ") as caught:
        expand(path, JSONL_SUFFIXES)
    assert "SECRET" not in str(caught.value)


def test_a_page_in_place_of_a_manifest_is_none():
    """Some servers answer so for whatever is not there."""
    with http_server({"0.jsonl": LINES}, lambda request: "html" if "manifest" in request.path else None) as server:
        shards = JsonlShards(find_shards(f"{server.url}/0.jsonl", JSONL_SUFFIXES).urls)
        assert shards.num_records.tolist() == [100]
        server.fault = lambda _: "html"
        with pytest.raises(ShardError, match=r"0\.jsonl.*HTML"):
            JsonlShards(find_shards(f"{server.url}/0.jsonl", JSONL_SUFFIXES).urls)


def test_tars_with_sidecars_and_compressed_shards(bucket, write_tar):
    """Reached the same way as their tars; a compressed one is read from its start."""
    server, _options = bucket
    server.objects["bucket/t/0.tar"] = Path(write_tar([("a.txt", b"A"), ("b.txt", b"B")])).read_bytes()
    server.objects["bucket/t/0.meta.jsonl"] = b'{"key": "b", "n": 2}\n{"key": "a", "n": 1}\n'
    server.objects["bucket/z/0.jsonl.gz"] = gzip.compress(LINES)
    settings = {"endpoint": server.url, "anonymous": True}
    source = MetaDistributedWebDataset("s3://bucket/t", meta_names=["n"], storage_options=settings).source
    window = source.shards.window(np.array([0]), np.array([0]), np.array([2]))
    assert [(record["txt"], record["n"]) for record in window.take([0, 1])] == [(b"A", 1), (b"B", 2)]
    source = JsonlIterableDataset("s3://bucket/z", storage_options=settings).source
    assert [record["n"] for record in source.shards.stream(0)] == [*range(100)]


def test_compressed_shards_of_a_listed_folder_are_read_ahead(bucket):
    """Also where the list said all that is to be known of them."""
    server, options = bucket
    server.objects["bucket/z/0.jsonl.gz"] = gzip.compress(LINES)
    found = find_shards("s3://bucket/z", JSONL_SUFFIXES, None, options)
    shards = SequentialJsonl(found.urls, found.known)
    assert shards.has_remote
    assert shards.chunks(0) is not None


def test_lines_of_a_sidecar_beside_a_compressed_tar_come_many_at_once(bucket, write_tar, monkeypatch):
    """In whatever order they are; a request for each record would be as slow as the link is far."""
    server, options = bucket
    monkeypatch.setattr(sequential, "_CHUNK_BYTES", 300)
    tar = Path(write_tar([(f"{number:03}.txt", b"x") for number in range(100)])).read_bytes()
    lines = [b'{"key": "%03d", "n": %d}\n' % (number, number) for number in range(99, -1, -1)]
    server.objects |= {"bucket/t/0.tar.gz": gzip.compress(tar), "bucket/t/0.meta.jsonl": b"".join(lines)}
    found = find_shards("s3://bucket/t", TAR_SUFFIXES, None, options)
    shards = SequentialTar(found.urls, ["n"], None, found.known)
    for _ in range(2):
        server.log.clear()
        assert [record["n"] for record in shards.stream(0)] == [*range(100)]
    assert len(server.log) < 12


def test_a_store_that_dies_while_many_shards_are_indexed_ends_the_start_within_one_deadline(monkeypatch):
    """Not one for each shard, and those that come after it: a hundred, in threads."""
    monkeypatch.setattr(requests, "_DEAD_SHARE", 100)  # who comes within this is not to ask anew, on a slow machine too
    with http_server({f"{number}.jsonl": LINES for number in range(100)}) as server:
        server.fault = lambda request: "503" if len(server.log) > 120 else None
        began = time.monotonic()
        with pytest.raises(DeadHostError, match="status 503"):
            JsonlShards(sorted(f"{server.url}/{name}" for name in server.objects))
        assert time.monotonic() - began < 20  # one deadline for each would be 50 s
        assert len(server.log) < 120 + 300


@pytest.mark.parametrize("path", ["s3://bucket/data", "s3://bucket/data/*.jsonl", "s3://bucket/data/{0..1}.jsonl"])
@pytest.mark.parametrize(
    ("status", "kind", "word"), [("503", DeadHostError, "the host is dead"), ("403", DeniedError, "no permission")]
)
def test_a_store_that_does_not_answer_at_a_start_is_said_of_what_the_recipe_names(bucket, path, status, kind, word):
    """Though a manifest or a list is what was asked for first; a shard that is spelt out is named itself."""
    server, options = bucket
    server.fault = lambda _: status
    with pytest.raises(kind, match=rf"status {status}.*{word}") as caught:
        JsonlShards(find_shards(path, JSONL_SUFFIXES, None, options).urls)
    named = "s3://bucket/data/0.jsonl" if "{" in path and status == "403" else path
    assert f"'{named}'" in str(caught.value).partition(": expected")[0]


@pytest.mark.parametrize(
    ("url", "instead"), [("rclone://remote/a.tar", "rclone mount"), ("boto3://bucket/a.tar", "s3://bucket/key")]
)
def test_urls_of_other_tools_say_what_to_write(url, instead):
    """Before anything is asked."""
    with pytest.raises(ValueError, match=instead):
        expand(url, TAR_SUFFIXES)
