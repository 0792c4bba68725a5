"""Parquet and Arrow files: row groups → rows."""
