"""Settings of stores: which there are, of a source and of a recipe's top, and where they are not seen."""

import pickle
from itertools import islice

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, instantiate_from_yaml, to_state
from streamdata.errors import RecipeError
from streamdata.io.remote.addresses import NO_OPTIONS, StorageOptions, checked_options
from streamdata.io.remote.network import Network
from streamdata.run.topology import connections_of_process
from tests.io.servers import http_server, s3_server

LINES = b"".join(b'{"n": %d}\n' % number for number in range(4))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"end_point": "SECRET"}, "'end_point', did you mean 'endpoint'"),
        ({"key": "SECRET"}, "Keys come from the environment, a profile or a role"),
        ({"anonymous": "SECRET"}, "anonymous: expected true or false, got str"),
        ({"region": 5}, "region: expected a text, got int"),
        ({"endpoint": "SECRET"}, "endpoint: expected a url of http"),
        ("SECRET", "expected a mapping, got str"),
    ],
)
def test_what_is_not_an_option_is_an_error_that_does_not_repeat_it(given, words):
    """It may be a secret."""
    with pytest.raises(ValueError, match=words) as caught:
        checked_options(given, "source 'a'")
    assert "SECRET" not in str(caught.value)


def test_options_are_those_of_the_source_over_those_of_all():
    """Name by name; and they are not shown."""
    of_all = checked_options({"region": "all", "anonymous": True}, "top")
    assert checked_options({"region": "own"}, "a").over(of_all) == StorageOptions(region="own", anonymous=True)
    assert checked_options({"anonymous": False}, "a").over(of_all) == StorageOptions(region="all", anonymous=False)
    assert checked_options(None, "a") == NO_OPTIONS
    assert repr(of_all) == "StorageOptions(…)"
    assert pickle.loads(pickle.dumps(of_all)) == of_all


def recipe(path, top=None, **own):
    """One source in a mixture."""
    source = {"target": "streamdata.JsonlIterableDataset", "params": {"path": path, **own}, "name": "a", "percent": 1}
    params = {"datasets": [source], **({} if top is None else {"storage_options": top})}
    return {"target": "streamdata.MergedDataset", "params": params}


def test_the_top_of_a_recipe_gives_options_to_all_its_sources():
    """They are in force while it is built, and in no state or sample."""
    with s3_server({"bucket/a.jsonl": LINES}) as server:
        options = {"endpoint": server.url, "anonymous": True, "region": "NOWHERE"}
        for built in (
            recipe("s3://bucket/a.jsonl", options),
            recipe("s3://bucket/a.jsonl", {**options, "endpoint": "http://127.0.0.1:1"}, storage_options=options),
        ):
            dataset = instantiate_from_yaml(built)
            sample = next(iter(dataset))
            assert sample["__url__"] == "s3://bucket/a.jsonl"
            assert all(text not in repr(sample) for text in (server.url, "NOWHERE", "anonymous"))
        with pytest.raises(RecipeError, match="did you mean 'region'"):
            instantiate_from_yaml(recipe("s3://bucket/a.jsonl", {"regoin": "x"}))


def test_a_mixture_that_is_made_by_hand_takes_none(tmp_path):
    """Its sources are there already."""
    (tmp_path / "a.jsonl").write_bytes(LINES)
    source = JsonlIterableDataset(str(tmp_path), name="a", percent=1)
    with pytest.raises(ValueError, match="Give them to each source"):
        MergedDataset([source], storage_options={"anonymous": True})


@pytest.mark.parametrize(
    ("given", "ranks", "expected"),
    [(None, "1", 64), (None, "8", 8), (None, "64", 4), (200, "1", 64), (2, "1", 2), (2, "8", 2), (32, "2", 16)],
)
def test_connections_of_a_node_are_shared_by_its_ranks(monkeypatch, given, ranks, expected):
    """At least 4 where the node may have as many, and never more than 64."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert connections_of_process(given) == expected
    if given is None:
        monkeypatch.setenv("STREAMDATA_CONNECTIONS", "16")
        assert connections_of_process() == max(4, 16 // int(ranks))
        monkeypatch.setenv("STREAMDATA_CONNECTIONS", "many")
        with pytest.raises(ValueError, match=r"STREAMDATA_CONNECTIONS in the environment: .* got 'many'"):
            connections_of_process()


def test_connections_are_a_setting_of_the_top(tmp_path, monkeypatch):
    """It holds in the process that reads, from the first sample on, also where nothing is read ahead."""
    limits = []
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path))
    monkeypatch.setattr(Network, "limit", lambda self, connections: limits.append(connections))
    with http_server({"a.jsonl": LINES}) as server:
        source = JsonlIterableDataset(f"{server.url}/a.jsonl", name="a", percent=1)
        for setting in ({}, {"read_ahead_bytes": 0}):
            next(iter(MergedDataset([source], connections=7, **setting)))
        assert MergedDataset([source], connections=6).read("a", (0, 1, 0))["__key__"] == "1"
    assert limits == [7, 7, 6]
    with pytest.raises(ValueError, match="connections: expected a whole number above 0, got '7'"):
        MergedDataset([source], connections="7")


def test_values_come_from_the_environment_and_are_seen_nowhere(tmp_path, monkeypatch):
    """Of the top and of a source: in requests, and in no state, sample, index or error."""
    monkeypatch.setenv("STREAMDATA_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    (tmp_path / "own").write_text("[profile of-mine]\naws_access_key_id=mine\naws_secret_access_key=k\n")
    with s3_server({"bucket/a.jsonl": LINES}) as server:
        said = {"ENDPOINT": server.url, "REGION": "eu-secret-1", "PROFILE": "of-mine"}
        for name, value in {**said, "ANONYMOUS": "false", "AWS_CONFIG_FILE": str(tmp_path / "own")}.items():
            monkeypatch.setenv(name, value)
        values = {name: f"${{oc.env:{name.upper()}}}" for name in ("endpoint", "region", "profile")}
        values["anonymous"] = "${oc.decode:${oc.env:ANONYMOUS}}"
        for given in ({"top": values}, {"storage_options": values}):
            dataset = instantiate_from_yaml(recipe("s3://bucket/a.jsonl", **given))
            samples = list(islice(dataset, 4))
            assert "Credential=mine/" in server.log[-1].headers["authorization"]
            assert "/eu-secret-1/" in server.log[-1].headers["authorization"]
            kept = repr(samples) + repr(to_state([samples])) + repr(dataset)
            with pytest.raises(RecipeError, match="status 404") as caught:
                instantiate_from_yaml(recipe("s3://bucket/b.jsonl", **given))
            files = b"".join(path.read_bytes() for path in tmp_path.rglob("*.index"))
            everything = kept + str(caught.value) + files.decode("latin-1")
            assert [value for value in said.values() if value in everything] == []
