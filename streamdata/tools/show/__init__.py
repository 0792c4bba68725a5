"""Looking at samples: `recipe, store or prepared directory → samples → a terminal, JSON, one HTML file, or a browser`.

- `streams`: a mixture's samples that are shown, and the page of them
- `views/`: sample → what there is to show of it, as plain values
- `terminal`, `as_json`, `page`: those values → text, JSON, an HTML file
- `browser/`: pages that a server at 127.0.0.1 gives, read step by step
"""

__all__: list[str] = []
