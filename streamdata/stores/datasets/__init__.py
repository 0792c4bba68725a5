"""Datasets over stores: map-style, of one train type each.

1. store → `FlatWindows`, `RowWindows` → where windows begin → `SeqDataset`, `SFTDataset` → their tokens and masks
2. store → `DPODataset`, `GRPODataset` → records → `dpo_collate`, `grpo_collate` → padded batches
3. one Megatron pair → `MegatronSamples` → the samples of Megatron-Core, index for index
4. the name of a train type → `DatasetFactory` → one of these
"""

__all__ = ["base_dataset", "dataset_factory", "megatron_samples", "record_datasets", "window_datasets"]
