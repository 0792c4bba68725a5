"""Variables of a chat template that a row brings: `a column, or a setting → a mapping that the template may have`."""

import json
from collections.abc import Mapping
from typing import Any, Final

from streamdata.errors import shown
from streamdata.text.messages import without_nulls

ROW_KWARGS: Final = "chat_template_kwargs"
"""The column; its variables go before those of the settings."""
_NOT_OF_THE_TEMPLATE: Final = {
    "continue_final_message", "conversation", "max_length", "messages", "padding", "processor_kwargs",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
}  # fmt: skip
"""What `apply_chat_template` takes for itself: no template would see it."""


def not_variables(kwargs: Mapping[Any, Any]) -> list[Any]:
    """The keys that are not variables of a template."""
    return [key for key in kwargs if not isinstance(key, str) or key in _NOT_OF_THE_TEMPLATE]


def row_template_kwargs(row: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that a row brings for its template, as a mapping or its JSON text; most often none.

    Raises:
        ValueError: They are not a mapping, or the template would not see them.
    """
    given = row.get(ROW_KWARGS)
    if not given:
        return {}
    try:
        kwargs = json.loads(given) if isinstance(given, str) else without_nulls(given)
    except json.JSONDecodeError:
        kwargs = None
    if not isinstance(kwargs, dict) or not_variables(kwargs) or "add_generation_prompt" in kwargs:
        raise ValueError(
            f"{ROW_KWARGS}: expected variables of the chat template by name, got {shown(given)}\n"
            "  Store a mapping, or its JSON text, of what the template reads."
        )
    return kwargs
