"""Tests of `streamdata.tools.trace`."""
