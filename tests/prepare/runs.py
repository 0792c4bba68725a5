"""What the tests of preparing share: real text, inputs, runs and what they wrote."""

import ast
import functools
import gzip
import json
import sysconfig
from pathlib import Path

import pytest

from streamdata.prepare import Pipeline

PRETRAIN = {"train_type": "seq", "sections": [{"field": "text", "action": "train"}], "end_of_document": True}
MODULES = ("textwrap", "heapq", "bisect", "fnmatch", "shlex", "calendar")


@functools.cache
def functions() -> list[dict]:
    """Functions of the standard library with docstrings: name, doc and source."""
    found = []
    for module in MODULES:
        source = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text()
        lines = source.splitlines(keepends=True)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)):
                # As `ast.get_source_segment`, which splits the whole text for each.
                code = "".join(lines[node.lineno - 1 : node.end_lineno])[node.col_offset :].rstrip("\n")
                found.append({"name": f"{module}.{node.name}", "doc": doc, "code": code})
    return found


def documents(count: int = 60) -> list[dict]:
    """Records of pretraining text."""
    found = functions()
    return [{"text": found[number % len(found)]["code"], "id": number} for number in range(count)]


def write(path: Path, records: list) -> str:
    """A JSONL file of records, or of lines; compressed by its suffix."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def tree(output: Path) -> dict[str, bytes]:
    """Every file of an output but that which tells of time and host."""
    paths = sorted(path for path in output.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(output)): path.read_bytes() for path in paths}


def run(config: dict, tokenizer: str, inputs: object, output: Path, **options: object) -> dict:
    """A run from its config to its manifest."""
    return Pipeline(config, tokenizer).run(inputs, output, **options)


def interrupt(config: dict, tokenizer: str, texts: str, out: Path, after: int = 2) -> None:
    """A run that ends in the midst of things."""
    seen = []

    def stop(progress: object) -> None:
        seen.append(progress)
        if len(seen) > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tokenizer, texts, out, progress=stop)
