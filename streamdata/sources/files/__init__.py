"""Sources over files: shards, images and tables."""
