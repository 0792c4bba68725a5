"""What people ask about a recipe, a run or its data, and the command that answers."""
