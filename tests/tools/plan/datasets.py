"""Datasets without files, one record of which cannot be read."""

from torch.utils.data import Dataset, IterableDataset


class Rows(Dataset):
    """25,000 records by number."""

    def __len__(self):
        return 25_000

    def __getitem__(self, index):
        if index == 7:
            raise OSError("no 7")
        return {"n": index}


class Stream(IterableDataset):
    """One after the other."""

    def __iter__(self):
        return map(Rows().__getitem__, range(20))


class Holes(Dataset):
    """None in place of the second of three."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return None if index == 1 else {"n": index}
