"""Tool schemas from a YAML file: a list of them, or `tools:` with a `tool_schema` each, beside what runs the tool."""

from typing import Any

import yaml

from streamdata.sources.prompts.config import WHO


def read_tool_file(path: str) -> list[dict[str, Any]]:
    """Read the schemas; the rest of the file is for those who run the tools.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no schemas.
    """
    with open(path, encoding="utf-8") as file:
        content = yaml.safe_load(file)
    tools = content.get("tools") if isinstance(content, dict) else content
    if not isinstance(tools, list) or not tools:
        raise _no_schemas(path, content)
    schemas = [tool.get("tool_schema", tool) if isinstance(tool, dict) else tool for tool in tools]
    if not all(isinstance(schema, dict) and "function" in schema for schema in schemas):
        raise _no_schemas(path, content)
    return schemas


def _no_schemas(path: str, content: Any) -> ValueError:
    return ValueError(
        f"{WHO}: expected tool schemas in '{path}', got {str(content)[:200]}\n"
        "  Write a list of `{type: function, function: …}`, or `tools:` with such a `tool_schema` each."
    )
