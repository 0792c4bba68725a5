"""Knowing before a run: `recipe and a number of samples → what each source gives, repeats and costs`."""

__all__: list[str] = []
