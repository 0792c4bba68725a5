"""From many sources to one stream, in one lane.

1. names, weights, lane → `start_clocks` → where each source's clock starts
2. clocks, samples → `Mixture` → the source with the lowest clock is next; the entry of each node joins the sample
3. datasets → `MergedDataset` → a torch dataset: ranks, workers, passes, states
4. map-style datasets, weights → `BlendIndex` → `BlendableDataset` → one map-style dataset, in the order of Megatron-LM
"""

from streamdata.mixing.blendable import BlendableDataset, make_blendable_dataset
from streamdata.mixing.merged import MergedDataset

__all__ = ["BlendableDataset", "MergedDataset", "make_blendable_dataset"]
