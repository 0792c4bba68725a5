"""What a mixture must have in common on all ranks, for these to read one stream."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from streamdata.errors import shown
from streamdata.mixing.tree import MixtureSettings, tree_of
from streamdata.run import DataParallel
from streamdata.sources.skip import Skips
from streamdata.states.gathering import states_digests, verify_ranks_agree


def verify_mixture_agrees(
    mixture: MixtureSettings, group: DataParallel, states: Mapping[str, Any], skips: Skips
) -> None:
    """Compare topology, seeds, recipe, what is skipped and states with those of the other ranks; call it on every rank.

    Raises:
        StateError: Some rank has others; on every rank.
    """
    top = tree_of(mixture)
    # Of the whole tree: a nested mixture has a seed of its own, and orders of its own by it.
    seeds = {node.path: node.dataset.seed for node in top.walk() if node.is_mixture}
    tree = top.tree()
    # Without the seeds, which a mixture's line names: who has another seed has no other recipe.
    nodes = {path: text.replace(f"seed {seeds.get(path)},", "seed,") for path, text in tree.nodes.items()}
    recipe = json.dumps([nodes, dict(tree.weights)], sort_keys=True)
    # Seeds and sizes as text, which a message can show; trees are long, and told by their digest.
    facts = {
        "topology": f"{group.dp_size} ranks",
        "seed": ", ".join(f"{seed} of {shown(path)}" if path else str(seed) for path, seed in sorted(seeds.items())),
        "recipe": blake2b(recipe.encode(), digest_size=16).hexdigest(),
        "skip": f"{skips.num_records} records, digest {skips.digest('')}",
        **states_digests(states, group.dp_rank),
    }
    verify_ranks_agree(facts, group)
