"""Which file systems are a network away."""

import logging

import pytest

from streamdata.io.cache.page_cache import PageCache, network_disk_of

MOUNTS = r"""22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /mnt/team\040share rw - nfs4 server:/export rw,vers=4.2
31 22 0:31 / /mnt/team\040share/disk rw - xfs /dev/nvme0n1 rw
32 22 0:32 / /mnt/bucket rw - fuse.gcsfuse bucket rw
33 22 0:33 / /mnt/overlay rw - fuse.fuse-overlayfs overlay rw
34 22 0:34 / /mnt/lustre rw - lustre 10.0.0.1@tcp:/fs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", None),
        ("/mnt/team share/cache", "nfs4"),
        ("/mnt/team share/disk/cache", None),
        ("/mnt/team shares", None),
        ("/mnt/bucket", "fuse.gcsfuse"),
        ("/mnt/overlay/cache", None),
        ("/mnt/lustre/scratch", "lustre"),
    ],
)
def test_the_mount_that_is_nearest_tells(path, kind):
    """Its type, also behind a space in its path."""
    assert network_disk_of(path, MOUNTS) == kind


def test_a_cache_on_a_network_file_system_is_said(tmp_path, monkeypatch, caplog):
    """It is used all the same: it may be faster than the store."""
    monkeypatch.setattr("streamdata.io.cache.page_cache.network_disk_of", lambda _: "nfs4")
    caplog.set_level(logging.WARNING)
    PageCache(str(tmp_path), 10**9)
    assert "network file system (nfs4)" in caplog.text
