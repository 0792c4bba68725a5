"""Recipes that are written by a program, and by people with its help.

1. paths → `find_groups` → groups of files of one kind → `draft_sources` → a source for each, with comments
2. our targets → `recipe_schema` → a JSON Schema of recipes

- `draft.py`: which kinds of data lie in files and folders, what their first records are, and the recipe's text.
- `schema.py`: what recipes may say, for editors.
"""
