"""What manifests say of the shards of a source: `urls, manifests → a column for each fact`."""

from collections.abc import Sequence

import numpy as np

from streamdata.io.storage import FileStamp, Int64s, Stamps, is_remote
from streamdata.shards.index.manifest import NO_FILE, Manifest
from streamdata.shards.index.manifest_file import Known, ListedShards


class ListedFacts:
    """Facts of shards and of their indexes of one kind; where no manifest has one, `manifest_of` is -1 and all else 0.

    Args:
        urls: The shards.
        kind: Of their indexes.
        manifests: What they are looked up in; the first that has the index counts.
    """

    def __init__(self, urls: Sequence[str], kind: str, manifests: ListedShards) -> None:
        count = len(urls)
        self.manifest_of: Int64s = np.full(count, -1, np.int64)
        columns = [np.zeros(count, np.int64) for _ in range(9)]
        self.num_records, self.skipped, self.first_skipped, self.noted, self.offsets = columns[:5]
        self.stamps, self.sidecar_stamps = Stamps(*columns[5:7]), Stamps(*columns[7:])
        self.sidecar_urls, self.is_remote = [""] * count, [False] * count
        for number, (manifest, _) in enumerate(manifests):
            files = manifest.files_of(urls)
            entries = manifest.entries_of(kind, files)
            self._take(number, manifest, kind, np.where(self.manifest_of < 0, entries, -1))

    def _take(self, number: int, manifest: Manifest, kind: str, entries: Int64s) -> None:
        """Take in what a manifest says; -1 stands for a shard of which it has no such index."""
        (shards,) = np.nonzero(entries >= 0)
        if not len(shards):
            return
        own = manifest.directory.indexes[kind][entries[shards]]
        self.manifest_of[shards] = number
        for name in ("num_records", "skipped", "first_skipped", "noted", "offset"):
            column = self.offsets if name == "offset" else getattr(self, name)
            column[shards] = own[name]
        files = own["file"].astype(np.int64)
        self.stamps.sizes[shards], self.stamps.versions[shards] = (
            manifest.directory.sizes[files],
            manifest.versions[files],
        )
        is_far = is_remote(manifest.root)
        for shard in shards.tolist() if is_far else ():
            self.is_remote[shard] = True
        if (own["sidecar"] != NO_FILE).any():
            self._take_sidecars(manifest, shards, own["sidecar"].astype(np.int64))

    def _take_sidecars(self, manifest: Manifest, shards: Int64s, files: Int64s) -> None:
        stamps, directory = self.sidecar_stamps, manifest.directory
        stamps.sizes[shards], stamps.versions[shards] = directory.sizes[files], manifest.versions[files]
        urls, sidecars = manifest.urls, self.sidecar_urls
        for shard, file in zip(shards.tolist(), files.tolist(), strict=True):
            sidecars[shard] = urls[file]


def stamps_in(manifest: Manifest, files: Int64s) -> list[FileStamp]:
    """The stamps of some files of a manifest."""
    sizes, versions = manifest.directory.sizes[files], manifest.versions[files]
    return list(map(FileStamp, sizes.tolist(), versions.tolist()))


def stamps_known(urls: Sequence[str], known: Known) -> dict[str, FileStamp]:
    """The stamps of those files of which one is known, in their order."""
    stamps = {url: known.stamps[url] for url in urls if url in known.stamps}
    for manifest, _ in known.manifests:
        files = manifest.files_of(urls)
        own = [url for url, file in zip(urls, files.tolist(), strict=True) if file >= 0]
        stamps = dict(zip(own, stamps_in(manifest, files[files >= 0]), strict=True)) | stamps
    return stamps
