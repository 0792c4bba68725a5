"""Windows for fine-tuning: only some tokens are trained."""

import numpy as np
import torch

from streamdata.errors import StoreError
from streamdata.stores.base_dataset import Sample
from streamdata.stores.window_dataset import TOKENS, WindowDataset
from streamdata.stores.windows import Places

_MASK, _POSITIONS = "loss_mask", "position_ids"


class SFTDataset(WindowDataset):
    """Samples of train type `sft`, from the keys `sequence`, `loss_mask` and `position_ids`.

    A sample has `input_ids` and `target_ids`, int64 (window_size,), `loss_mask`, bool (window_size,), aligned with the
    targets (it is that of the token which is predicted), and `position_ids`, int64 (window_size,), as stored or, with
    `documents`, anew for each document. See `WindowDataset` for arguments and errors.
    """

    train_type = "sft"

    def _samples(self, places: Places) -> list[Sample]:
        samples = super()._samples(places)
        masks = self._with_next(_MASK, places, False)[:, 1:].astype(np.bool_)
        for sample, mask in zip(samples, torch.from_numpy(masks).unbind(), strict=True):
            sample[_MASK] = mask
        if self._marks is None:
            positions = self.store.gather(_POSITIONS, places.begins, self.window_size).astype(np.int64)
            for sample, ids in zip(samples, torch.from_numpy(positions).unbind(), strict=True):
                sample[_POSITIONS] = ids
        return samples

    def _check_columns(self) -> None:
        super()._check_columns()
        lengths = {key: len(self.store.column(key)) for key in (TOKENS, _MASK, _POSITIONS)}
        if len(set(lengths.values())) > 1:
            raise StoreError(f"{self._who}: expected as many values of each key, got {lengths} in '{self.store.path}'")
        for key, kinds in ((_MASK, "bi"), (_POSITIONS, "i")):
            dtype = self.store.column(key).dtype
            if dtype.kind not in kinds:
                raise StoreError(f"{self._who}: expected {key!r} to be no {dtype}, in '{self.store.path}'")
