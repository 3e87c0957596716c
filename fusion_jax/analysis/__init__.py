"""Views of trained models: what they have learned, as numbers and figures.

`views.py` is the table of all views. Each view is one file: a pure function
that measures, one that draws, and the `View` that names both.
"""
