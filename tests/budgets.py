"""How large the house may be. These numbers only fall; a change that needs more says here why."""

from typing import Final

DESIGN_WORDS: Final = 4_000
"""Of `streamdata/README.md`, as `wc -w` counts."""

GLOSSARY_WORDS: Final = 24
"""Of its table of words."""
