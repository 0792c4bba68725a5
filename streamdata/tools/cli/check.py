"""`streamdata check`: what is wrong with a recipe."""

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamdata.recipe import check_recipe
from streamdata.tools.cli.messages import say
from streamdata.tools.cli.recipe_files import RecipeFiles

if TYPE_CHECKING:
    from streamdata.mixing import MergedDataset


def check_problems(
    recipe: Path,
    variables: Mapping[str, Any],
    allow: Collection[str] | None,
    *,
    imports: Collection[str] = (),
    with_files: bool = True,
    online: bool = False,
    include_roots: Sequence[str] = (),
) -> bool:
    """Show every problem that can be seen without building the recipe; return whether none is an error."""
    files = RecipeFiles(online=online) if with_files else None
    problems = check_recipe(
        recipe, variables, allow=allow, imports=imports, files=files, is_streamed=True, include_roots=include_roots
    )
    for problem in problems:
        # What could not be checked says so itself.
        say(str(problem) if problem.kind == "not checked" else f"{problem.kind}: {problem}")
    kinds = Counter(problem.kind for problem in problems)
    errors, warned = _counted(kinds["error"], "error"), _counted(kinds["warning"], "warning")
    say(f"{recipe}: {errors}, {warned}, {kinds['not checked']} not checked")
    return not kinds["error"]


def check_resume(
    recipe: Path, variables: Mapping[str, Any], allow: Collection[str] | None, include_roots: Sequence[str] = ()
) -> bool:
    """Build the recipe, restart its functions between samples, and show those that go on with other samples.

    Returns:
        Whether all do.

    Raises:
        RecipeError: It cannot be built.
    """
    from streamdata.tools.cli.run import build_mixture
    from streamdata.tools.view.exactness import NUM_SAMPLES, STEPS, find_inexact

    def build() -> "MergedDataset":
        with warnings.catch_warnings(action="ignore"):  # the check before has shown them, and this builds many times
            return build_mixture(recipe, variables, allow, include_roots)

    found = find_inexact(build)
    for inexact in found:
        say(f"error: {inexact}")
    steps = ", ".join(map(str, STEPS))
    result = f"{len(found)} not the same" if found else "the same samples"
    say(f"resume: {NUM_SAMPLES} samples of each source, restarted from JSON states after {steps}: {result}")
    return not found


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
