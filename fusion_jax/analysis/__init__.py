"""What trained models have learned, as numbers and figures.

`views.py` is the table of all ways to look at a run. Each is one file: a pure
function that measures, one that draws, and the `View` that names both.
"""
