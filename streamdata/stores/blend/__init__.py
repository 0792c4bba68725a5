"""Map-style datasets as one, mixed by weight, in the order of Megatron-LM.

1. weights → `blend_weights` → integers with their sum, or float64
2. weights, size → `blend` (compiled where numba is there) → the dataset of each sample → `BlendIndex`
3. datasets, `BlendIndex` → `BlendableDataset` → one map-style dataset
4. a Megatron command line → `megatron_blend` → datasets and weights
"""

__all__ = ["blend_rule", "blendable", "from_megatron"]
