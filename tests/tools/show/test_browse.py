"""A mixture and a store in a browser: what a request gives, without one."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from itertools import islice

import pytest

from streamdata import JsonlIterableDataset, MergedDataset, StreamLoader, mixed_collate, named
from streamdata.tools.show.streams import MixtureSamples, Place, dataset_at
from tests.stores.tiny_stores import write


def mixture(folder):
    """Lines of a file, and numbers."""
    path = folder / "lines.jsonl"
    path.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(40)))
    lines = JsonlIterableDataset(str(path), name="lines", percent=0.5)
    return MergedDataset([lines, named([{"n": n} for n in range(30)], name="numbers", percent=0.5)])


def asked(browsed, path="", **query):
    """The page's text."""
    return browsed(path, query).content.decode()


def test_pages_are_those_of_the_run(tmp_path):
    """They begin after the newest states, whose places are on the line."""
    loader, states = StreamLoader(mixture(tmp_path), batch_size=2, collate=mixed_collate), {}
    for step, batch in enumerate(islice(loader, 6), 1):
        states[f"step {step}"] = loader.state_dict()
        told = {str(sample.get("text", sample.get("n"))) for sample in batch}
    names = [*states][3:]
    place = Place(states=[states[name] for name in names], batch=2)
    browsed = MixtureSamples(mixture(tmp_path), place).browsed("a.yaml", 4)
    first, earlier = asked(browsed), asked(browsed, step="6")
    assert "<h1>Steps 7 to 8</h1>" in first
    assert first.count("<circle") == 3
    assert all(f">{text}<" in earlier for text in told)


def test_ranks_can_be_chosen(tmp_path):
    """Where there are several; one that is not there is an error on a page."""
    browsed = MixtureSamples(mixture(tmp_path), Place(dp_size=2, batch=2)).browsed("a.yaml", 4)
    pages = [asked(browsed, step="1", rank=rank) for rank in ("0", "1")]
    assert [f"<h1>Steps 1 to 2, rank {rank}</h1>" in page for rank, page in enumerate(pages)] == [True, True]
    assert "rank: expected a whole number from 0 to 1, got &#39;2&#39;" in asked(browsed, step="1", rank="2")


@pytest.mark.parametrize("given", ["-1", "0", "1.5", "", "9" * 30, "0" * 20 + "9" * 4000, "²"])
def test_what_is_no_step_is_an_error_on_a_page(tmp_path, given):
    """And nothing ends."""
    browsed = MixtureSamples(mixture(tmp_path), Place()).browsed("a.yaml")
    answer = browsed("", {"step": given})
    assert answer.status == 500
    assert "step: expected a whole number" in answer.content.decode()


def test_each_kind_of_page_has_what_leads_on(tmp_path):
    """Samples, and an error."""
    browsed = MixtureSamples(mixture(tmp_path), Place(batch=2)).browsed("a.yaml", 4)
    assert re.search(r'<a id="forth" class="button" rel="next" href="\./\?step=3">', asked(browsed))
    assert 'href="./?step=x">Try again</a>' in asked(browsed, step="x")


def test_nothing_else_is_there(tmp_path):
    """Neither files of the package nor of the machine."""
    pages = MixtureSamples(mixture(tmp_path), Place()).browsed("a.yaml")
    for path in ("x", "mixture", "page.html.jinja", "../server.py", "page.css/", "/etc/passwd", "%2e%2e"):
        assert pages(path, {}) is None
    assert pages("page.js", {}).content_type.startswith("text/javascript")


def test_records_of_a_store_are_pages(tmp_path):
    """As those of files are, in their order."""
    dataset = dataset_at(write("bin", tmp_path / "store"), None)
    text = asked(MixtureSamples(dataset, Place(step=9)).browsed("store", 4))
    assert "<h1>Steps 9 to 12</h1>" in text
    assert ">index 8</p>" in text


def test_the_command_prints_the_url_and_ends_at_ctrl_c(tmp_path):
    """One line on stdout; 130, as shells expect, and the port is free."""
    command = [sys.executable, "-m", "streamdata", "show", write("bin", tmp_path / "store"), "--browser"]
    environment = os.environ | {"DISPLAY": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(url, timeout=60) as page:  # noqa: S310  (our own)
            assert b"<h1>Steps 1 to" in page.read()
        process.send_signal(signal.SIGINT)
        more, error = process.communicate(timeout=60)
    assert (process.returncode, more, error) == (130, "", "interrupted\n")
