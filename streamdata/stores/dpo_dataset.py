"""Preference pairs."""

from streamdata.stores.base_dataset import Sample
from streamdata.stores.record_dataset import RecordDataset
from streamdata.stores.store import Record


class DPODataset(RecordDataset):
    """Samples of train type `dpo`: one pair each, never a slice over two.

    A sample has `chosen` and `rejected`, int64 (tokens,) each, and `chosen_mask` and `rejected_mask`, bool of the same
    lengths: which tokens are trained. See `RecordDataset` for arguments and errors.
    """

    train_type = "dpo"

    def _sample(self, number: int, record: dict[str, Record]) -> Sample:
        sample = {key: self._flat(record, key, number)[: self.window_size] for key in self._keys}
        for key in ("chosen", "rejected"):
            mask = f"{key}_mask"
            sizes = (len(self._flat(record, key, number)), len(self._flat(record, mask, number)))
            self._expect(sizes[0] == sizes[1], number, f"{mask!r} as long as {key!r}", sizes)
            sample[mask] = sample[mask].bool()
        return sample
