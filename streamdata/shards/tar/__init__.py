"""Tar archives of the webdataset convention: members ↔ records, with metadata from sidecars."""
