"""Every record of a recipe, read once."""
