"""Windows for next-token prediction."""

import numpy as np
import torch

from streamdata.stores.base_dataset import Sample
from streamdata.stores.window_dataset import TOKENS, WindowDataset
from streamdata.stores.windows import FlatWindows

_INT64 = np.dtype(np.int64)


class SeqDataset(WindowDataset):
    """Samples of train type `seq`, from the key `sequence`: `input_ids` and `target_ids`, int64 (window_size,).

    The target is the token that follows. See `WindowDataset` for arguments and errors.
    """

    train_type = "seq"

    def __getitem__(self, idx: int) -> Sample:
        if self._marks is not None or not isinstance(self._windows, FlatWindows):
            return super().__getitem__(idx)
        # The same without the cost of a batch of one.
        begin = self._number(idx) * self.stride
        tokens = self.store.stored(TOKENS, begin, begin + self.window_size + 1)
        return {
            "input_ids": torch.from_numpy(tokens[:-1].astype(_INT64)),
            "target_ids": torch.from_numpy(tokens[1:].astype(_INT64)),
        }
