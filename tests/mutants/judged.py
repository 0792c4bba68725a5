"""Mutants that survive, and rightly: for each, by file, line before and line after, why no test kills it."""

JUDGED: dict[tuple[str, str, str], str] = {}
