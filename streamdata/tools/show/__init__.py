"""Looking at samples: `recipe, store or prepared directory → samples → a terminal, one HTML file, or a browser`."""

__all__: list[str] = []
