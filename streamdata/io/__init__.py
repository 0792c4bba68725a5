"""Bytes from anywhere: local files, object stores, web servers and commands."""
