"""Datasets over stores: map-style, of one train type each (`base_dataset`), or several as one.

1. `window_datasets`: store → where windows begin → `SeqDataset`, `SFTDataset` → their tokens and masks
2. `record_datasets`: store → `DPODataset`, `GRPODataset` → records → padded batches; a train type → `DatasetFactory`
3. `megatron_samples`: one Megatron pair → the samples of Megatron-Core, index for index
4. `blend_rule`: weights, size → the dataset of each sample, in the order of Megatron-LM (compiled where numba is there)
5. `blendable`: map-style datasets, weights → `BlendIndex` → `BlendableDataset`
6. `from_megatron`: a Megatron command line → datasets and weights
"""

__all__ = ["base_dataset", "blendable", "megatron_samples", "record_datasets", "window_datasets"]
