"""What a recipe may say of the cache."""

import os
import pickle

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, instantiate_from_yaml, to_state
from streamdata.errors import RecipeError, SourceError
from streamdata.io.cache.cached import page_cache, read_cached
from streamdata.io.remote.addresses import Address, CacheSettings, beside, cache_of, keep_in, read_cache_settings
from streamdata.recipe.limits import under_allow
from tests.shard_files import write_jsonl


def test_a_path_and_a_bound():
    """The path from the root, since a worker may have another working directory; a bound may be written 2e11."""
    assert read_cache_settings({"path": "/c", "max_bytes": 2e11}) == CacheSettings("/c", 200_000_000_000)
    assert read_cache_settings({"path": "~/c"}) == CacheSettings(os.path.expanduser("~/c"), None)
    assert read_cache_settings({"path": "c"}) == CacheSettings(os.path.abspath("c"))
    assert read_cache_settings(None) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/c", "expected a mapping with the path"),
        ({"max_bytes": 10**9}, "expected a mapping with the path"),
        ({"path": "/c", "max_byte": 10**9}, r"unknown setting 'max_byte', did you mean 'max_bytes'\?"),
        ({"path": "/c", "max_bytes": "1 GB"}, "expected a whole number of bytes as max_bytes"),
        ({"path": "/c", "max_bytes": True}, "expected a whole number"),
        ({"path": "/c", "max_bytes": 1.5e9 + 0.5}, "expected a whole number"),
        ({"path": "/c", "max_bytes": 4096}, r"at least 4227072 \(one page of 4 MiB"),
        ({"path": "/c", "max_bytes": 4 << 20}, r"at least 4227072 \(one page of 4 MiB"),
    ],
)
def test_what_is_not_understood_is_an_error(value, message):
    """It says what is expected and how to write it."""
    with pytest.raises(ValueError, match=message):
        read_cache_settings(value)


def test_a_recipe_under_allow_may_not_choose_where_files_are_written(tmp_path, monkeypatch):
    """But for what its caller's variables or the environment name."""
    with under_allow((), {}), pytest.raises(ValueError, match="built under allow"):
        read_cache_settings({"path": str(tmp_path)})
    with under_allow((), {"fast_disk": str(tmp_path)}):
        assert read_cache_settings({"path": str(tmp_path / "cache")})
    monkeypatch.setenv("STREAMDATA_DATA_CACHE", str(tmp_path))
    with under_allow((), {}):
        assert read_cache_settings({"path": str(tmp_path)})


def test_the_top_speaks_for_sources_that_say_nothing(tmp_path):
    """A source's own comes first, then that of the mixture around it, then the top's."""
    path = write_jsonl(tmp_path, [3])
    own, inner, top = ({"path": f"/{name}", "max_bytes": 10**9} for name in ("own", "inner", "top"))
    sources = [JsonlIterableDataset(path, name=name, percent=1.0) for name in "abc"]
    sources.append(JsonlIterableDataset(path, name="d", percent=1.0, cache=own))
    nested = MergedDataset(sources[:1], name="nested", percent=1.0, cache=inner)
    MergedDataset([nested, *sources[1:]], cache=top)
    assert [source.cache.path for source in sources] == ["/inner", "/top", "/top", "/own"]


def test_a_recipe_names_it_and_no_state_does(tmp_path):
    """Of the top for all; a wrong name is an error that names the line's target."""
    path = write_jsonl(tmp_path, [3])
    source = {"target": "streamdata.JsonlIterableDataset", "params": {"path": path}, "name": "s", "percent": 1.0}
    params = {"datasets": [source], "cache": {"path": "/secret/place", "max_bytes": 10**9}}
    dataset = instantiate_from_yaml({"target": "streamdata.MergedDataset", "params": params})
    assert dataset.datasets[0].cache == CacheSettings("/secret/place", 10**9)
    assert "secret" not in repr(to_state([next(iter(dataset))]))
    params["cache"] = {"paths": "/c"}
    with pytest.raises(RecipeError, match="cache: expected a mapping with the path"):
        instantiate_from_yaml({"target": "streamdata.MergedDataset", "params": params})


def test_an_address_brings_its_cache_along():
    """To a spawned worker, and to the sidecar beside it; it is no part of what the address is."""
    address, cache = Address("https://store/a.tar?secret"), CacheSettings("/c", 10**9)
    keep_in(cache, [address, "/local.tar"])
    assert cache_of(pickle.loads(pickle.dumps(address))) == cache
    assert cache_of(beside(address, "https://store/a.meta.jsonl")) == cache
    assert address == Address("https://store/a.tar") == "https://store/a.tar"


def test_the_environment_speaks_where_nothing_else_does(tmp_path, monkeypatch):
    """One cache of a process for each directory."""
    assert page_cache(None) is None
    monkeypatch.setenv("STREAMDATA_DATA_CACHE", str(tmp_path / "shared"))
    cache = page_cache(None)
    assert cache is page_cache(CacheSettings(str(tmp_path / "shared")))
    assert cache is not page_cache(CacheSettings(str(tmp_path / "other"), 10**9))
    with pytest.raises(ValueError, match="expected one max_bytes, got 1000000000 and 2000000000"):
        page_cache(CacheSettings(str(tmp_path / "other"), 2 * 10**9))


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    """Not a run without the cache that was asked for."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="expected a directory that can be written"):
        page_cache(CacheSettings(str(tmp_path / "file" / "cache"), 10**9))


def test_a_disk_that_is_full_at_the_start_is_one_warning(tmp_path, monkeypatch, caplog):
    """What is read comes from the store."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streamdata.io.cache.room.os.pwrite", full)
    settings = CacheSettings(str(tmp_path / "cache"), 10**9)
    url = Address("https://store/a.tar", cache=settings)
    for _ in range(2):
        assert page_cache(settings) is None
        assert read_cached(url, 9, 1, 0, 9, lambda begin, end: (begin, end)) == (0, 9)
    assert len([line for line in caplog.messages if "No space left" in line]) == 1
