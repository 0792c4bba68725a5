"""What a run is, and what came of it: `config, tokenizer, inputs → plan`; `plan, markers → manifest`. Plain JSON."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from streamdata.errors import shown
from streamdata.prepare.config import PrepareConfig
from streamdata.prepare.encode import vocabulary_size
from streamdata.prepare.inputs import Task, input_digest
from streamdata.text.tokenizer import tokenizer_digest

Json = dict[str, Any]
VERSION = 3
RESULTS: Final = ("counts", "dropped", "bad", "files")
"""What a manifest has beside its plan, and the digests of inputs."""
_NOT_IN_DIGEST = {"max_bad"}
"""What changes no output: more bad records may be accepted when an interrupted run goes on."""


def make_plan(
    config: PrepareConfig, name: str, tokenizer: Any, tasks: Sequence[Task], shard: tuple[int, int] | None
) -> Json:
    """All that determines the output of a run.

    Args:
        config: As it was given.
        name: The tokenizer's, for people who read the manifest.
        tokenizer: The tokenizer itself.
        tasks: Of all inputs.
        shard: Which part of the tasks this run does, and of how many parts; None for all.
    """
    digested = json.dumps(config.model_dump(exclude=_NOT_IN_DIGEST), sort_keys=True)
    stamps = {task.url: task.stamp for task in tasks}
    size = vocabulary_size(tokenizer)
    return {
        "made_by": f"streamdata prepare {VERSION}",
        "config": config.model_dump(exclude_defaults=True),
        "config_digest": hashlib.blake2b(digested.encode(), digest_size=16).hexdigest(),
        "tokenizer": {"name": name, "digest": tokenizer_digest(tokenizer), "vocabulary": size},
        "inputs": [{"url": url, "size": stamp.size, "mtime_ns": stamp.version} for url, stamp in stamps.items()],
        "num_tasks": len(tasks),
        "shard": None if shard is None else list(shard),
    }


def json_bytes(value: Any) -> bytes:
    """JSON to read and to compare."""
    return json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n"


def differences(before: Json, now: Json) -> list[str]:
    """What differs between two plans, in words."""
    found = []
    if before.get("made_by") != now["made_by"]:
        return [f"it was made by {shown(before.get('made_by'))}, this is {shown(now['made_by'])}"]
    if before["config_digest"] != now["config_digest"]:
        old, new = (_full(plan["config"]) for plan in (before, now))
        found.append(f"the config: {', '.join(key for key in new if old[key] != new[key])}")
    if before["tokenizer"]["digest"] != now["tokenizer"]["digest"]:
        found.append(f"the tokenizer: was {before['tokenizer']['name']}, is {now['tokenizer']['name']}")
    if before["shard"] != now["shard"]:
        found.append(f"the shard: was {before['shard']}, is {now['shard']}")
    old_inputs, new_inputs = ({entry["url"]: _stamp(entry) for entry in plan["inputs"]} for plan in (before, now))
    for url in sorted(old_inputs.keys() | new_inputs.keys()):
        old_stamp, new_stamp = old_inputs.get(url, "not there"), new_inputs.get(url, "not there")
        if old_stamp != new_stamp:
            found.append(f"the input '{url}': was {old_stamp}, is {new_stamp}")
    return found


def _full(config: Json) -> Json:
    return PrepareConfig.model_validate(config).model_dump(exclude=_NOT_IN_DIGEST)


def _stamp(entry: Json) -> str:
    return f"{entry['size']} bytes of mtime {entry['mtime_ns']}"


def make_manifest(plan: Json, markers: Iterable[Json]) -> Json:
    """What came of a run, from its markers alone: the same on one machine and on many, and in any order of tasks.

    Args:
        plan: The run's.
        markers: Of all its tasks, in the order of tasks.
    """
    totals: dict[str, Counter[str]] = {name: Counter() for name in ("counts", "dropped", "bad")}
    digests: dict[str, list[str]] = {}
    files, num_files = hashlib.sha256(), 0
    for marker in markers:
        for name, total in totals.items():
            total.update(marker[name])
        digests.setdefault(marker["input"]["url"], []).append(marker["input"]["digest"])
        for path, (size, digest) in sorted(marker["files"].items()):
            files.update(f"{path} {size} {digest}\n".encode())
            num_files += 1
    inputs = [entry | {"digest": input_digest(digests.get(entry["url"], []))} for entry in plan["inputs"]]
    return {
        **plan,
        "inputs": inputs,
        **{name: dict(sorted(total.items())) for name, total in totals.items()},
        "files": {"number": num_files, "digest": files.hexdigest()},
    }


def summary(manifest: Json) -> str:
    """A manifest in a few lines."""
    counts: Counter[str] = Counter(manifest["counts"])
    trained = _percent(counts["trained"], counts["tokens"])
    came = f"{counts['records']:,} records in, {counts['sequences']:,} sequences out"
    lines = [f"{came}; {counts['tokens']:,} tokens, {trained} of them trained"]
    if counts["rows"]:
        row_tokens = counts["tokens"] + counts["padding"]
        lines.append(
            f"{counts['rows']:,} rows, {_percent(counts['tokens'], row_tokens)} full, {counts['padding']:,} tokens of "
            f"padding, {counts['documents_cut']:,} documents cut"
        )
    for what in ("dropped", "bad"):
        if manifest[what]:
            total = sum(manifest[what].values())
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest[what].items())
            lines.append(f"{total:,} {what}: {reasons}")
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"
