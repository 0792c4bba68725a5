"""Recipes that are written by a program, and by people with its help.

1. paths → `find` → groups of files of one kind → `draft` → a source for each, with what was seen as comments
2. our targets → `recipe_schema` → a JSON Schema of recipes

- `find.py`: which kinds of data lie in files and folders, and what their first records are.
- `draft.py`: the recipe's text.
- `schema.py`: what recipes may say, for editors.
"""
