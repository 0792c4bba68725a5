"""Messages as ShareGPT has them, `from` and `value`, as messages with `role` and `content`."""

import json
from collections.abc import Mapping
from typing import Any, Final

from streamdata.errors import shown

_ROLES: Final = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


def with_role(message: dict[str, Any]) -> dict[str, Any]:
    """The message with role and content; one that has a role already is returned unchanged.

    Raises:
        ValueError: Nobody is known by that name, or a call of a function is not JSON.
    """
    if "role" in message or "from" not in message:
        return message
    rest = {key: value for key, value in message.items() if key not in ("from", "value")}
    speaker, value = message["from"], message.get("value")
    if speaker not in _ROLES:
        raise ValueError(f"chat: expected `from` among {', '.join(_ROLES)}, got {shown(speaker)}\n  Rename who speaks.")
    if speaker == "function_call":
        return {**rest, "role": "assistant", "content": "", "tool_calls": _calls(value)}
    return {**rest, "role": _ROLES[speaker], "content": value}


def _calls(value: Any) -> list[dict[str, Any]]:
    try:
        calls = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        calls = None
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, Mapping) and "name" in call for call in calls):
        raise ValueError(
            f"chat: expected a function_call to be JSON with a name and arguments, got {shown(value)}\n"
            "  Correct the row."
        )
    return [{"type": "function", "function": call} for call in calls]
