"""Indexes of shards, where they are kept, and manifests that list them."""
