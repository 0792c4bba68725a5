"""The page cache: pages of remote files on the disk of a node, shared by its processes."""
