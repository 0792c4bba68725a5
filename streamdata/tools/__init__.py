"""Answers to questions about a recipe, a run or its data, and the command that gives them."""
