"""Datasets of other libraries as sources: `dataset → which kind it is → records, each with the position after it`.

- `named.py`: which kind a dataset is, and `named`, the attributes that a recipe would set
- `map_style.py`: `MapStyleSource`, by `__getitem__`
- `own_stream.py`: `OwnStreamSource`, by `__iter__`, a stream for each lane
"""
