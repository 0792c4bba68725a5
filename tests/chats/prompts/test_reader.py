import functools
import os
import subprocess
import sys
import threading
from types import ModuleType

import pytest

from streamdata.chats.prompt_reader import function_digest

MODULE = """
import functools
import threading

def nested(messages, **_):
    held = {"user", "system", "tool", "assistant", "developer"}
    return "".join(m["content"] for m in messages if m["role"] in {"user", "system", "tool", "assistant"} or held)

def default(messages, tag="short", lock=threading.Lock(), key=lambda m: m["content"], **_):
    return tag + key(messages[0])

def keyword(messages, *, tag="short", cut=lambda text: text[:9], **_):
    return tag + messages[0]["content"]

def swapped(messages, first=None, second=None, **_):
    return messages[0]["content"] * 2

partly = functools.partial(keyword, tag="given")

def framed(frame):
    def decorate(function):
        @functools.wraps(function)
        def call(messages, **kwargs):
            return frame + function(messages, **kwargs)
        return call
    return decorate

@framed("frame ")
def decorated(messages, **_):
    return messages[0]["content"] * 3

class Called:
    def __init__(self):
        self.head, self.roles, self.me = "short", {"user", "system", "tool", "assistant", "developer"}, self
    def __call__(self, messages, **_):
        return self.head + messages[0]["content"] * 4
    def method(self, messages, **_):
        return self.head + messages[0]["content"] * 5

called = Called()
method = called.method
partly_called = functools.partial(called, 1)
"""
NAMES = ("nested", "default", "keyword", "swapped", "partly", "decorated", "called", "method", "partly_called")
DIGESTS = f"""
import sys
import templates
from streamdata.chats.prompt_reader import function_digest
print([function_digest(getattr(templates, name)) for name in {NAMES}])
"""


def digests(folder, seed):
    """Those of another process."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.getcwd()}", "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-c", DIGESTS]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_the_digest_of_a_function_is_the_same_in_each_process(tmp_path):
    """Whatever the addresses there, the order of sets, and whether the module was compiled before."""
    (tmp_path / "templates.py").write_text(MODULE)
    first, second = (digests(tmp_path, seed) for seed in (1, 2))
    assert first == second
    assert len(set(first.split(","))) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("nested", '"".join', '" ".join'),
        ("nested", "if m[", "if not m["),
        ("nested", '"tool", "assistant"} or', '"assistant"} or'),
        ("default", 'tag="short", lock', 'tag="longer", lock'),
        ("default", 'lambda m: m["content"]', 'lambda m: m["content"] * 2'),
        ("keyword", '*, tag="short"', '*, tag="longer"'),
        ("keyword", "text[:9]", "text[:8]"),
        ("swapped", "first=None, second=None", "second=None, first=None"),
        ("partly", "tag + messages", "tag * 2 + messages"),
        ("partly", 'tag="given"', 'tag="other"'),
        ("decorated", '@framed("frame ")', '@framed("other ")'),
        ("decorated", "* 3", "* 30"),
        ("called", "* 4", "* 40"),
        ("called", '.roles, self.me = "short"', '.roles, self.me = "longer"'),
        ("called", '"developer"}, self', '"other"}, self'),
        ("method", "* 5", "* 50"),
        ("method", '.roles, self.me = "short"', '.roles, self.me = "longer"'),
        ("partly_called", "* 4", "* 40"),
        ("partly_called", "partial(called, 1)", "partial(called, 2)"),
    ],
)
def test_a_function_that_does_something_else_has_another_digest(name, old, new, monkeypatch):
    """In its code or what that is given: defaults, arguments of a partial, what a decorator or an object holds."""
    assert MODULE.count(old) == 1
    found = []
    for text in (MODULE, MODULE.replace(old, new), MODULE):
        module = ModuleType("templates")
        monkeypatch.setitem(sys.modules, "templates", module)
        exec(text, vars(module))  # noqa: S102  # as its import would
        found.append(function_digest(getattr(module, name)))
    assert found[0] == found[2] != found[1]


def test_a_function_that_cannot_be_sent_is_refused():
    """It is sent to the processes that measure."""
    for function in (lambda messages, **_: "", functools.partial(print, threading.Lock())):
        with pytest.raises(ValueError, match="expected a chat_template_func that can be sent"):
            function_digest(function)
