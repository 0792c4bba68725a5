"""Knowing after a run: `states and a step → the records that made its batch`; `states → plain numbers to report`."""

__all__: list[str] = []
