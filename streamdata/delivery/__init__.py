"""From samples to batches.

1. list of samples → `mixed_collate` → one shared buffer per batch → list of samples in the trainer
2. map-style dataset → `ResumableDistributedSampler` → this replica's indices of an epoch, from where the job stood
"""

from streamdata.delivery.collate import mixed_collate
from streamdata.delivery.sampler import ResumableDistributedSampler

__all__ = ["ResumableDistributedSampler", "mixed_collate"]
