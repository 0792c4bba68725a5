"""What became of the sources since a checkpoint was written, in words."""

from collections.abc import Iterator

from streamdata.progress.header import Tree
from streamdata.progress.progress import Progress


def describe_changes(progress: Progress, now: Tree) -> Iterator[str]:
    """Yield a line for each source that was removed or renamed, joins, returns, or has another weight."""
    before = progress.newest_tree(now)
    if before is None:
        return
    held = progress.paths()
    removed = {path: node for path, node in before.nodes.items() if path not in now.nodes}
    for path, node in now.nodes.items():
        if path not in before.nodes and path in held:
            yield f"source {path!r} returns, and goes on where it stood"
        elif path not in before.nodes:
            twin = next((old for old, was in removed.items() if was == node), None)
            hint = f" (was {twin!r} renamed? where it stood counts for that name alone)" if twin is not None else ""
            yield f"source {path!r} is new since the states were written, and starts at its beginning{hint}"
        elif path in before.weights and before.weights[path] != now.weights[path]:
            yield f"source {path!r} has the weight {now.weights[path]} now, had {before.weights[path]} in the states"
    for path in removed:
        yield f"source {path!r} was removed since the states were written; where it stood is kept for when it returns"
