"""AstrAI's pipeline configuration as one of `prepare`: `JSON of theirs → a mapping of ours, and what is different`.

Theirs has `input` (`sections` or `sources`), `mask`, `mask_default`, `preprocessing` and `output`; see
`astrai/config/preprocess_config.py` of AstrAI at 75304d0. What it leaves out stands for its own defaults, not for ours.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from streamdata.errors import shown
from streamdata.stores.dtypes import SOURCES

_ROLES: Final = ("system", "user", "assistant", "tool")
_KNOWN: Final = {
    "": ("version", "input", "mask", "mask_default", "preprocessing", "output", "tokenizer_path"),
    "input": ("sections", "sources"),
    "preprocessing": (
        "max_seq_len", "min_chars", "max_chars", "max_items", "batch_size", "packing_strategy", "max_packed_len",
        "truncation_mode",
    ),
    "output": ("domain_key", "storage_format", "max_tokens_per_shard", "dtype", "position_ids_mode"),
    "section": ("field", "action", "template", "add_special_tokens"),
    "source": ("sections", "list_field", "mask_key"),
}  # fmt: skip


def converted(tree: Any) -> tuple[dict[str, Any], list[str]] | None:
    """Converts a configuration of AstrAI into one of `streamdata prepare`.

    Returns:
        A mapping that `PrepareConfig` takes, and a line for each thing that will be otherwise than there; None if the
        configuration has not AstrAI's form.

    Raises:
        ValueError: It has a key that AstrAI does not know, or says nothing of its input.
    """
    if not isinstance(tree, Mapping) or not isinstance(tree.get("input"), Mapping) or "train_type" in tree:
        return None
    given, processing, output = tree["input"], tree.get("preprocessing") or {}, tree.get("output") or {}
    for place, mapping in (("", tree), ("input", given), ("preprocessing", processing), ("output", output)):
        _check_keys(mapping, place, place or "the configuration")
    sources = given.get("sources")
    config: dict[str, Any] = {"train_type": _train_type(given)}
    if sources:
        for name, source in sources.items():
            _check_keys(source, "source", f"source {shown(name)}")
        config["sources"] = {name: _sections(source.get("sections"), tree) for name, source in sources.items()}
    else:
        config["sections"] = _sections(given.get("sections"), tree)
    config |= _limits(processing, config) | _stored(output, config)
    return config, list(_notes(tree, processing, output, config))


def _check_keys(mapping: Any, place: str, who: str) -> None:
    if not isinstance(mapping, Mapping) or (unknown := sorted(set(mapping) - set(_KNOWN[place]))):
        got = f"the keys {unknown}" if isinstance(mapping, Mapping) else repr(mapping)
        raise ValueError(
            f"{who}: expected the keys {', '.join(_KNOWN[place])} of AstrAI, got {got}\n"
            "  Or write a configuration of streamdata, with train_type."
        )


def _train_type(given: Mapping[str, Any]) -> str:
    names = set(given.get("sources") or ())
    for train_type in ("dpo", "grpo"):
        if names == set(SOURCES[train_type]):
            return train_type
    sections = given.get("sections")
    if names or not sections:
        raise ValueError(
            f"input: expected sections, or sources chosen and rejected or prompts, responses and rewards, got "
            f"{sorted(names) or sections}"
        )
    # As there: texts that are all trained have no mask.
    is_text = all(section.get("action") == "train" and not section.get("template") for section in sections)
    return "seq" if is_text else "sft"


def _sections(sections: Any, tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for number, section in enumerate(sections or ()):
        _check_keys(section, "section", f"section {number}")
        action = section.get("action")
        made: dict[str, Any] = {"field": section.get("field"), "action": action}
        if section.get("template"):
            is_chat = action == "$role"
            default = tree.get("mask_default") if is_chat else action
            roles = dict.fromkeys(_ROLES, "train") if default == "train" else {}
            made |= {"action": "$role", "roles": roles | dict((tree.get("mask") if is_chat else None) or {})}
        elif action in ("train", "mask"):
            made["add_special_tokens"] = section.get("add_special_tokens", number == 0)
        found.append(made)
    return found


def _limits(processing: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    strategy, packed = processing.get("packing_strategy", "simple"), processing.get("max_packed_len", 8192)
    length = processing.get("max_seq_len", 2048)
    limits: dict[str, Any] = {"max_seq_len": length, "too_long": "truncate_right"}
    if config["train_type"] == "seq":
        limits |= {"min_chars": processing.get("min_chars", 50), "max_chars": processing.get("max_chars", 2_000_000)}
    if config["train_type"] in ("seq", "sft"):
        # Their `simple` packs nothing: it cuts each sequence once more.
        limits["max_seq_len"] = length if strategy == "bfd_split" else min(length, packed)
        if strategy != "simple":
            limits |= {"packing": strategy, "max_packed_len": packed}
    return limits


def _stored(output: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    stored = {
        "format": output.get("storage_format", "bin"),
        "max_tokens_per_shard": output.get("max_tokens_per_shard", 100_000_000),
    }
    if output.get("domain_key") is not None:
        stored["domain_key"] = output["domain_key"]
    mode = output.get("position_ids_mode", "doc_reset")
    if config["train_type"] == "seq" or (config["train_type"] == "sft" and mode != "none"):
        stored["position_ids"] = mode
    return stored


def _notes(
    tree: Mapping[str, Any], processing: Mapping[str, Any], output: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[str]:
    sections = config.get("sections") or [section for some in config["sources"].values() for section in some]
    if any(section["action"] == "$role" for section in sections):
        yield "a chat goes through the tokenizer's template as a whole, not message by message, and no start is added"
    yield "a record without a field is an error; set max_bad, or optional in a section"
    if processing.get("max_items") is not None:
        yield f"max_items {processing['max_items']} is left out: give as many records"
    if processing.get("truncation_mode") == "keep_end":
        yield "truncation_mode keep_end is left out: max_seq_len keeps the start, as there; too_long decides here"
    if processing.get("batch_size") is not None:
        yield "batch_size is left out: it changes nothing of what is written"
    if output.get("dtype"):
        yield "dtype is left out: the tokenizer's largest id decides, and masks are bool"
    if output.get("position_ids_mode") == "none" and config["train_type"] == "sft":
        yield "position_ids_mode none is left out: sft stores doc_reset"
    if tree.get("tokenizer_path"):
        yield f"tokenizer_path is left out: give --tokenizer {tree['tokenizer_path']}"
