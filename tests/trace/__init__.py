"""Tests of `streamdata.trace`."""
