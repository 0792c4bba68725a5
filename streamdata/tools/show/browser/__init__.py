"""Samples in a browser: one job at a time, a page of steps at a time."""
