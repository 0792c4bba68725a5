"""Reads how records become tokens: `YAML or JSON → PrepareConfig`, or all of its errors, with their locations."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from streamdata.compat.astrai import converted
from streamdata.errors import RecipeError, did_you_mean, shown
from streamdata.recipe.limits import DEFAULT_RECIPE_LIMITS, RefusedFileError, read_bounded
from streamdata.recipe.yaml_tree import Locations, Problem, UnreadableError, read_yaml
from streamdata.recipe.yaml_tree import Path as TreePath
from streamdata.stores.dtypes import SOURCES

logger = logging.getLogger("streamdata")

TrainType = Literal["seq", "sft", "dpo", "grpo"]
Format = Literal["bin", "h5", "megatron"]

STREAMED: tuple[TrainType, ...] = ("seq", "sft")
"""Train types that are read as windows over one sequence; the records of the others stay records."""
_PRESETS: Final = Path(__file__).parent / "presets"
_Found = Iterator[tuple[TreePath, str]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Section(_Strict):
    """One field of a record, and what becomes of it."""

    field: Annotated[str, Field(min_length=1)]
    """The name of the field; dots lead into nested objects."""
    action: Literal["train", "mask", "$role", "value"]
    """train or mask the tokens of a text; $role: a chat, trained by the roles of its messages; value: numbers."""
    template: str | None = None
    """For a text: `{value}` stands for the field, and what is before it is a header, which is not trained. For a chat:
    a Jinja template instead of the tokenizer's own."""
    add_special_tokens: bool = False
    """Whether the tokenizer adds those of its own format, such as a start, to a text."""
    optional: bool = False
    """Whether the section is left out where the field is missing, null or empty; else that is an error."""
    roles: dict[str, Literal["train", "mask"]] = {"assistant": "train"}
    """Roles of a chat that are trained; others are masked, and a message's own `train: false` decides."""
    tools: str | None = None
    """The field of a record with the tools of its chat, where there are any."""
    system: str | None = None
    """The field of a record with a system message that goes before its chat, where there is one."""
    prompt: str | None = None
    """The field of a record with the messages that its chat answers, where there are any; they go before it unless it
    begins with them. A text there has to be what the first user of the chat says."""
    add_generation_prompt: bool = False
    """Whether the chat is a prompt that ends where the assistant begins to speak."""
    template_kwargs: dict[str, Any] = {}
    """Variables for the chat template."""
    append_stop: bool = True
    """Whether the next role's token ends the answers of a chat whose template has none for that, such as GLM-4.5's."""


WHOLE_CHAT: Final = Section(field="messages", action="$role")
"""The section of a chat whose record is of a known format."""
RECORD_FORMATS: Final[Mapping[TrainType, tuple[str, ...]]] = {
    "seq": ("language-modeling",),
    "sft": ("language-modeling", "prompt-completion", "sharegpt", "alpaca"),
    "dpo": ("preference",),
    "grpo": (),
}
"""Formats that records may have without sections, by train type; see `streamdata.text.formats`."""


class PrepareConfig(_Strict):
    """Settings of `prepare`: how records become a store that `DatasetFactory` reads."""

    train_type: TrainType
    """Use of the store: seq (pretraining), sft, dpo (pairs) or grpo (rollouts)."""
    records: Literal["auto", "language-modeling", "prompt-completion", "preference", "sharegpt", "alpaca"] = "auto"
    """Format of records where there are no sections; `auto` for that which the fields of the first say."""
    sections: list[Section] | None = None
    """The sections of the one sequence of seq and sft, in their order."""
    sources: dict[str, list[Section]] | None = None
    """The sections of each source: chosen and rejected for dpo; prompts, responses and rewards for grpo."""
    max_seq_len: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of a sequence, its end-of-document token included."""
    too_long: Literal["drop", "truncate_left", "truncate_right", "error"] = "drop"
    """Treatment of a longer one; truncate_left keeps its end. A sequence that then trains nothing is dropped."""
    min_chars: Annotated[int, Field(ge=0)] = 0
    """Records whose texts have fewer characters together are dropped."""
    max_chars: Annotated[int, Field(ge=1)] | None = None
    """Records whose texts have more are dropped."""
    max_items: Annotated[int, Field(ge=1)] | None = None
    """Records with a list of more texts, messages or numbers are dropped."""
    packing: Literal["none", "simple", "bfd", "bfd_split"] = "none"
    """Sharing of rows of max_packed_len tokens by sequences: cut anywhere, whole where they fit, or cut first and fit.
    seq has no mask that could leave out padding: its rows follow one another without any, and windows run across."""
    max_packed_len: Annotated[int, Field(ge=2)] | None = None
    """Tokens per row."""
    position_ids: Literal["none", "doc_reset", "continuous"] | None = None
    """From 0 in each document, on through the row, or not stored; by default doc_reset for sft, none for seq."""
    end_of_document: bool = False
    """Whether the tokenizer's end-of-sequence token follows each sequence of seq and sft."""
    domain_key: str | None = None
    """The field of a record that names the directory of its own below the output."""
    weight_field: Annotated[str, Field(min_length=1)] | None = None
    """The field of a record that says how much its tokens count in the loss, a number from 0 on; 1 where a record lacks
    it. For seq and sft, in bin and h5."""
    format: Format = "bin"
    """Format of the store on disk; `auto` is bin."""
    max_tokens_per_shard: Annotated[int, Field(ge=1)] = 1 << 28
    """A shard with this many tokens is full."""
    task_bytes: Annotated[int, Field(ge=1)] = 1 << 26
    """Bytes of input per task, the unit of work and of resuming; packing does not cross tasks."""
    backend: Literal["tokenizers", "gigatoken"] = "tokenizers"
    """Encoder of texts; gigatoken is used if it agrees with the tokenizer on a sample of the input."""
    max_bad: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^\d+(\.\d+)?%$")] = 0
    """Number of records that may be bad, or per cent such as "0.1%"; they go to `quarantine.jsonl`."""

    @field_validator("format", mode="before")
    @classmethod
    def _usual_format(cls, given: Any) -> Any:
        # Everywhere else `format: auto` asks what rows are, which is asked here wherever there are no sections.
        return "bin" if given == "auto" else given

    def has_known_records(self) -> bool:
        """Whether records have a known format, instead of one described by sections."""
        return self.sections is None and self.sources is None and bool(RECORD_FORMATS[self.train_type])

    def sources_by_name(self) -> dict[str, list[Section]]:
        """The sections of each source, by the source's name in the train type."""
        if self.has_known_records():
            names = ("chosen", "rejected") if self.train_type == "dpo" else ("sequence",)
            return {name: [WHOLE_CHAT] for name in names}
        return self.sources if self.sources is not None else {"sequence": self.sections or []}

    def all_sections(self) -> list[Section]:
        """The sections of all sources."""
        return [section for sections in self.sources_by_name().values() for section in sections]

    def has_rows(self) -> bool:
        """Whether records become rows of one length, whose padding a mask has to leave out."""
        return self.packing != "none" and SOURCES[self.train_type]["sequence"].mask is not None

    def has_chats(self) -> bool:
        """Whether a chat template is needed."""
        return any(section.action == "$role" for section in self.all_sections())

    def stored_positions(self) -> Literal["none", "doc_reset", "continuous"]:
        """The kind of position ids that the store holds."""
        return self.position_ids or ("doc_reset" if self.train_type == "sft" else "none")

    def most_bad(self, records: float) -> float:
        """The most bad records allowed among `records` of them."""
        return float(self.max_bad[:-1]) / 100 * records if isinstance(self.max_bad, str) else self.max_bad


def load_config(config: PrepareConfig | Mapping[str, Any] | str | os.PathLike[str]) -> PrepareConfig:
    """Reads and checks the config of a YAML or JSON file, of a preset, or of a mapping.

    Args:
        config: As `config_path` takes it, or what such a file says.

    Raises:
        RecipeError: It has errors; all of them are named, with their locations. There is no such file or preset.
        OSError: The file cannot be read.
    """
    problems: list[Problem] = []
    tree: Any = config.model_dump() if isinstance(config, PrepareConfig) else config
    file = None if isinstance(tree, Mapping) else config_path(tree)
    name = str(file or "config")
    locations = Locations(name, on_problem=lambda problem, _: problems.append(problem))
    if file is not None:
        try:
            tree = read_yaml(read_bounded(file, DEFAULT_RECIPE_LIMITS.file_bytes, is_regular=False), locations)
        except UnreadableError as error:
            raise RecipeError(str(error)) from error
        except RefusedFileError as error:
            raise RecipeError(f"{file}: {error}") from error
    try:
        astrai = converted(tree)
    except ValueError as error:
        raise RecipeError(f"{name}: {error}") from None
    if astrai is not None:
        tree, notes = astrai
        listed = "".join(f"\n  - {note}" for note in notes)
        logger.warning("%s: a configuration of AstrAI, read as %s%s", name, json.dumps(tree), listed)
    validated = None
    try:
        validated = PrepareConfig.model_validate(tree)
        found = _conflicts(validated)
    except ValidationError as error:
        found = _explained(error, tree)
    for path, message in found:
        locations.report(path, message)
    if problems or validated is None:
        raise RecipeError("\n".join(str(problem) for problem in problems))
    return validated


def config_path(name: str | os.PathLike[str]) -> Path:
    """Finds the file of a config: a path that is there, or the name of a preset.

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


def _explained(error: ValidationError, tree: Any) -> _Found:
    """Yields each error with its path in the tree; where several alternatives do not fit, that of the first."""
    seen: set[TreePath] = set()
    for detail in error.errors(include_url=False):
        path, given = _path_in(tree, detail["loc"]), detail["input"]
        if path in seen:
            continue
        seen.add(path)
        if detail["type"] == "extra_forbidden":
            known = (PrepareConfig if len(path) == 1 else Section).model_fields
            yield path, f"unknown key{did_you_mean(str(path[-1]), known)}\n  The keys here are: {', '.join(known)}."
        elif detail["type"] == "missing":
            yield path[:-1], f"expected the key {shown(path[-1])}, got none"
        else:
            expected = detail["msg"].removeprefix("Input should be ").removeprefix("String should ")
            guess = did_you_mean(given, expected.split("'")[1::2]) if isinstance(given, str) else ""
            is_records = path == ("format",) and given in get_args(PrepareConfig.model_fields["records"].annotation)
            remedy = f"\n  What records are is said by 'records: {given}'." if is_records else ""
            yield path, f"expected {expected}, got {shown(given)}{guess}{remedy}"


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
    """Yields settings that do not go together, though each value alone is right."""
    yield from _source_conflicts(config)
    for path, name, section in _sections(config):
        yield from ((path, message) for message in _section_conflicts(config, name, section))
    is_packed, is_streamed = config.packing != "none", config.train_type in STREAMED
    if is_packed and not is_streamed:
        yield ("packing",), f"expected 'none' for train_type {config.train_type}, got {shown(config.packing)}"
    if is_packed != (config.max_packed_len is not None):
        yield ("packing",), f"goes with max_packed_len, got {shown(config.packing)} and {config.max_packed_len}"
    for name in ("position_ids", "end_of_document", "weight_field"):
        if not is_streamed and getattr(config, name) not in (None, "none", False):
            yield (name,), f"goes with train_type seq or sft, got {shown(config.train_type)}"
    if config.packing == "bfd" and (config.max_seq_len is None or config.max_seq_len > (config.max_packed_len or 0)):
        expected = f"expected at most max_packed_len ({config.max_packed_len}) with packing 'bfd', which cuts nothing"
        yield ("max_seq_len",), f"{expected}, got {config.max_seq_len}\n  Set it, or use 'bfd_split'."
    is_plain = config.train_type == "seq" and not is_packed and config.stored_positions() == "none"
    if config.format == "megatron" and not (is_plain and config.weight_field is None):
        expected = "megatron holds the tokens of unpacked documents alone: train_type 'seq', no position ids or weights"
        yield ("format",), f"{expected}\n  Write bin or h5."
    if config.train_type == "sft" and config.stored_positions() == "none":
        yield ("position_ids",), "expected doc_reset or continuous for train_type 'sft', which reads them, got 'none'"
    yield from _limit_conflicts(config)


def _limit_conflicts(config: PrepareConfig) -> _Found:
    if config.end_of_document and config.max_seq_len == 1:
        yield ("max_seq_len",), "expected at least 2 with end_of_document, which takes one of them, got 1"
    if config.max_chars is not None and config.max_chars < config.min_chars:
        yield ("max_chars",), f"expected at least min_chars ({config.min_chars}), got {config.max_chars}"


def _source_conflicts(config: PrepareConfig) -> _Found:
    """Yields what is wrong with the sections and sources of a train type, or with the format of its records."""
    if config.has_known_records():
        choices = RECORD_FORMATS[config.train_type]
        if config.records not in ("auto", *choices):
            expected = f"expected {' or '.join(choices)} for train_type {shown(config.train_type)}"
            yield ("records",), f"{expected}, got {shown(config.records)}"
        return
    if config.records != "auto":
        yield ("records",), f"goes without sections and sources, got {shown(config.records)}"
    sources, wanted = config.sources or {}, SOURCES[config.train_type]
    if config.train_type in STREAMED:
        if not config.sections or config.sources is not None:
            yield (), f"expected `sections`, and no `sources`, for train_type {shown(config.train_type)}"
    elif config.sections is not None or sources.keys() != wanted.keys():
        got = ", ".join(sources) or ("`sections`" if config.sections else "none")
        yield ("sources",), f"expected {', '.join(wanted)} for train_type {shown(config.train_type)}, got {got}"
    yield from ((("sources", name), "expected at least one section, got none") for name in sources if not sources[name])


def _sections(config: PrepareConfig) -> Iterator[tuple[TreePath, str, Section]]:
    """Yields each section with its path and the name of its source."""
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
    for option in ("roles", "tools", "system", "prompt", "add_generation_prompt", "template_kwargs", "append_stop"):
        if getattr(section, option) != Section.model_fields[option].default:
            yield f"{option} goes with the action $role, got {shown(section.action)}"
    if section.template is not None and section.template.count("{value}") != 1:
        yield f"expected a template with {{value}} in it, once, got {shown(section.template)}"
