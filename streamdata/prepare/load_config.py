"""Reading a config: `YAML or JSON → PrepareConfig`, or all of its errors at once, each with its location."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from streamdata.compat.astrai import converted, is_astrai
from streamdata.errors import RecipeError, did_you_mean, shown
from streamdata.prepare.config import RECORD_FORMATS, STREAMED, PrepareConfig, Section
from streamdata.recipe.limits import DEFAULT_RECIPE_LIMITS, RefusedFileError, read_bounded
from streamdata.recipe.locations import Locations, Problem, UnreadableError
from streamdata.recipe.locations import Path as TreePath
from streamdata.recipe.yaml_tree import read_yaml
from streamdata.stores.dtypes import SOURCES

logger = logging.getLogger("streamdata")

_Found = Iterator[tuple[TreePath, str]]


_PRESETS = Path(__file__).parent / "presets"


def load_config(config: PrepareConfig | Mapping[str, Any] | str | os.PathLike[str]) -> PrepareConfig:
    """The config of a YAML or JSON file, of a preset, or of a mapping.

    Args:
        config: As `config_path` takes it, or what such a file says.

    Raises:
        RecipeError: It has errors; all of them are named, with their locations. There is no such file or preset.
        OSError: The file cannot be read.
    """
    problems: list[Problem] = []
    tree: Any = config.model_dump() if isinstance(config, PrepareConfig) else config
    file = None if isinstance(tree, Mapping) else config_path(tree)
    locations = Locations(str(file or "config"), on_problem=lambda problem, _: problems.append(problem))
    if file is not None:
        try:
            tree = read_yaml(read_bounded(file, DEFAULT_RECIPE_LIMITS.file_bytes, is_regular=False), locations)
        except UnreadableError as error:
            raise RecipeError(str(error)) from error
        except RefusedFileError as error:
            raise RecipeError(f"{file}: {error}") from error
    if is_astrai(tree):
        tree = _from_astrai(tree, str(file or "config"))
    validated, found = _validate(tree)
    for path, message in found:
        locations.report(path, message)
    if problems or validated is None:
        raise RecipeError("\n".join(str(problem) for problem in problems))
    return validated


def _from_astrai(tree: Mapping[str, Any], file: str) -> dict[str, Any]:
    try:
        config, notes = converted(tree)
    except ValueError as error:
        raise RecipeError(f"{file}: {error}") from None
    listed = "".join(f"\n  - {note}" for note in notes)
    logger.warning("%s: a configuration of AstrAI, read as %s%s", file, json.dumps(config), listed)
    return config


def config_path(name: str | os.PathLike[str]) -> Path:
    """The file of a config: a path that is there, or the name of a preset.

    Raises:
        RecipeError: It is neither.
    """
    presets = {path.stem: path for path in sorted(_PRESETS.glob("*.yaml"))}
    if Path(name).exists():
        return Path(name)
    if name in presets:
        return presets[str(name)]
    raise RecipeError(
        f"config '{os.fspath(name)}': expected a file or the name of a preset, got neither"
        f"{did_you_mean(os.fspath(name), presets)}\n  The presets are: {', '.join(presets)}."
    )


def _validate(tree: Any) -> tuple[PrepareConfig | None, list[tuple[TreePath, str]]]:
    try:
        config = PrepareConfig.model_validate(tree)
    except ValidationError as error:
        return None, list(_explained(error, tree))
    return config, list(_conflicts(config))


def _explained(error: ValidationError, tree: Any) -> _Found:
    """Each error with its path in the tree; of several alternatives that do not fit, the error is that of the first."""
    seen: set[TreePath] = set()
    for detail in error.errors(include_url=False):
        path = _path_in(tree, detail["loc"])
        if path in seen:
            continue
        seen.add(path)
        if detail["type"] == "extra_forbidden":
            known = (PrepareConfig if len(path) == 1 else Section).model_fields
            yield path, f"unknown key{did_you_mean(str(path[-1]), known)}\n  The keys here are: {', '.join(known)}."
        elif detail["type"] == "missing":
            yield path[:-1], f"expected the key {shown(path[-1])}, got none"
        else:
            formats = get_args(PrepareConfig.model_fields["records"].annotation)
            is_records = path == ("format",) and detail["input"] in formats
            remedy = f"\n  What records are is said by 'records: {detail['input']}'." if is_records else ""
            yield path, _sentence(detail["msg"], detail["input"]) + remedy


def _sentence(message: str, value: Any) -> str:
    expected = message.removeprefix("Input should be ").removeprefix("String should ")
    guess = did_you_mean(value, message.split("'")[1::2]) if isinstance(value, str) else ""
    return f"expected {expected}, got {shown(value)}{guess}"


def _path_in(tree: Any, location: tuple[int | str, ...]) -> TreePath:
    """The part of pydantic's location that is in the tree: it names alternatives too, and keys that are missing."""
    path: list[int | str] = []
    for part in location:
        if (isinstance(tree, dict) and part in tree) or (isinstance(tree, list) and isinstance(part, int)):
            tree = tree[part]  # type: ignore[index]  # a list's index is an integer
        elif not isinstance(tree, dict) or part != location[-1]:
            continue
        path.append(part)
    return tuple(path)


def _conflicts(config: PrepareConfig) -> _Found:
    """What does not go together, though each value alone is right."""
    yield from _source_conflicts(config)
    for path, name, section in _sections(config):
        yield from ((path, message) for message in _section_conflicts(config, name, section))
    is_packed, is_streamed = config.packing != "none", config.train_type in STREAMED
    if is_packed and not is_streamed:
        yield ("packing",), f"expected 'none' for train_type {config.train_type}, got {shown(config.packing)}"
    if is_packed != (config.max_packed_len is not None):
        yield ("packing",), f"goes with max_packed_len, got {shown(config.packing)} and {config.max_packed_len}"
    for name in ("position_ids", "end_of_document"):
        if not is_streamed and getattr(config, name) not in (None, "none", False):
            yield (name,), f"goes with train_type seq or sft, got {shown(config.train_type)}"
    if config.packing == "bfd" and (config.max_seq_len is None or config.max_seq_len > (config.max_packed_len or 0)):
        expected = f"expected at most max_packed_len ({config.max_packed_len}) with packing 'bfd', which cuts nothing"
        yield ("max_seq_len",), f"{expected}, got {config.max_seq_len}\n  Set it, or use 'bfd_split'."
    if config.format == "megatron" and (config.train_type != "seq" or is_packed or config.stored_positions() != "none"):
        yield ("format",), "megatron holds the tokens of unpacked documents alone: train_type 'seq', no position ids"
    if config.train_type == "sft" and config.stored_positions() == "none":
        yield ("position_ids",), "expected doc_reset or continuous for train_type 'sft', which reads them, got 'none'"
    yield from _limit_conflicts(config)


def _limit_conflicts(config: PrepareConfig) -> _Found:
    if config.end_of_document and config.max_seq_len == 1:
        yield ("max_seq_len",), "expected at least 2 with end_of_document, which takes one of them, got 1"
    if config.max_chars is not None and config.max_chars < config.min_chars:
        yield ("max_chars",), f"expected at least min_chars ({config.min_chars}), got {config.max_chars}"


def _source_conflicts(config: PrepareConfig) -> _Found:
    wanted = SOURCES[config.train_type]
    if config.has_known_records():
        choices = RECORD_FORMATS[config.train_type]
        if config.records not in ("auto", *choices):
            expected = f"expected {' or '.join(choices)} for train_type {shown(config.train_type)}"
            yield ("records",), f"{expected}, got {shown(config.records)}"
        return
    if config.records != "auto":
        yield ("records",), f"goes without sections and sources, got {shown(config.records)}"
    if config.train_type in STREAMED:
        if not config.sections or config.sources is not None:
            yield (), f"expected `sections`, and no `sources`, for train_type {shown(config.train_type)}"
    elif config.sections is not None or set(config.sources or ()) != set(wanted):
        got = ", ".join(config.sources or ()) or ("`sections`" if config.sections else "none")
        yield ("sources",), f"expected {', '.join(wanted)} for train_type {shown(config.train_type)}, got {got}"
    for name, sections in (config.sources or {}).items():
        if not sections:
            yield ("sources", name), "expected at least one section, got none"


def _sections(config: PrepareConfig) -> Iterator[tuple[TreePath, str, Section]]:
    """Each section with its path and the name of its source."""
    for number, section in enumerate(config.sections or ()):
        yield ("sections", number), "sequence", section
    for name, sections in (config.sources or {}).items():
        for number, section in enumerate(sections):
            yield ("sources", name, number), name, section


def _section_conflicts(config: PrepareConfig, name: str, section: Section) -> Iterator[str]:
    keys = SOURCES[config.train_type].get(name)
    if (section.action == "value") != (name == "rewards"):
        yield f"the action 'value' is for rewards, and they have no other, got {shown(section.action)} in {shown(name)}"
    fitting = {"seq": ("train",), "grpo": ("mask", "$role")}.get(config.train_type)
    if fitting and keys is not None and keys.mask is None and name != "rewards" and section.action not in fitting:
        expected = f"the action {' or '.join(map(repr, fitting))}"
        yield f"{shown(name)} has no mask: expected {expected}, got {shown(section.action)}"
    if section.action == "$role":
        if section.add_special_tokens:
            yield "add_special_tokens is for texts: a chat template writes its own"
        if section.add_generation_prompt and (keys is None or keys.mask is not None):
            yield f"add_generation_prompt is for prompts, whose tokens have no mask, got it in {shown(name)}"
        return
    of_roles = ("roles", "tools", "system", "prompt", "add_generation_prompt", "template_kwargs", "append_stop")
    for option in of_roles:
        if getattr(section, option) != Section.model_fields[option].default:
            yield f"{option} goes with the action $role, got {shown(section.action)}"
    if section.template is not None and section.template.count("{value}") != 1:
        yield f"expected a template with {{value}} in it, once, got {shown(section.template)}"
