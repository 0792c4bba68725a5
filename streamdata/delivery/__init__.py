"""From samples to batches: `list of samples → one shared buffer per batch → list of samples in the trainer`."""

from streamdata.delivery.collate import mixed_collate

__all__ = ["mixed_collate"]
