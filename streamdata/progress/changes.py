"""What became of the sources since a checkpoint was written, in words."""

from collections.abc import Iterator

from streamdata.errors import shown
from streamdata.progress.header import Tree
from streamdata.progress.progress import Progress


def describe_changes(progress: Progress, now: Tree) -> Iterator[str]:
    """Yield a line for each source that was removed or renamed, joins, returns, or has another weight."""
    before = progress.newest_tree()
    if before is None:
        return
    held = {*progress.paths(), *progress.before.nodes}
    removed = {path: node for path, node in before.nodes.items() if path not in now.nodes}
    for path, node in now.nodes.items():
        if path not in before.nodes and path in held:
            yield f"source {shown(path)} returns, and goes on where it stood"
        elif path not in before.nodes:
            twin = next((old for old, was in removed.items() if was == node), None)
            hint = "" if twin is None else f" (was {shown(twin)} renamed? where it stood counts for that name alone)"
            yield f"source {shown(path)} is new since the states were written, and starts at its beginning{hint}"
        elif path in before.weights and before.weights[path] != now.weights[path]:
            weights = f"{now.weights[path]} now, had {before.weights[path]} in the states"
            yield f"source {shown(path)} has the weight {weights}"
    for path in removed:
        kept = "where it stood is kept for when it returns"
        yield f"source {shown(path)} was removed since the states were written; {kept}"
