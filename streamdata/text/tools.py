"""The schemas of tools that a conversation may call: `a column, or a YAML file → a list of schemas`."""

import json
from typing import Any

import yaml

from streamdata.errors import shown
from streamdata.recipe.regular_files import open_regular
from streamdata.text.messages import without_nulls


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Tool schemas from a column: dicts of Arrow's, or JSON text, of one tool each or of all; None without any.

    Raises:
        ValueError: They are not schemas.
    """
    try:
        tools = json.loads(value) if isinstance(value, str) else without_nulls(value)
        if not tools:
            return None
        tools = tools if isinstance(tools, list) else [tools]
        # A null in JSON is what its writer meant, and stays; only Arrow pads its dicts with nulls.
        read = [json.loads(tool) if isinstance(tool, str) else tool for tool in tools]
    except json.JSONDecodeError as error:
        raise _no_schemas(value) from error
    if not all(isinstance(tool, dict) for tool in read):
        raise _no_schemas(value)
    return read


def _no_schemas(value: Any) -> ValueError:
    return ValueError(f"tools: expected JSON schemas, got {shown(value)}\n  Store a list of dicts, or its JSON text.")


def read_tool_file(path: str) -> list[dict[str, Any]]:
    """Tool schemas from YAML: a list of them, or `tools:` with a `tool_schema` each, beside what runs the tool.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no schemas.
    """
    with open_regular(path, ValueError) as file:
        content = yaml.safe_load(file)
    tools = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(tools, list):
        tools = []
    schemas = [tool.get("tool_schema", tool) if isinstance(tool, dict) else tool for tool in tools]
    if not schemas or not all(isinstance(schema, dict) and "function" in schema for schema in schemas):
        raise ValueError(
            f"tools: expected tool schemas in '{path}', got {str(content)[:200]}\n"
            "  Write a list of `{type: function, function: …}`, or `tools:` with such a `tool_schema` each."
        )
    return schemas
