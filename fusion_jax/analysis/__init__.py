"""Views of trained models: what they have learned, as numbers and figures.

`views.py` is the table of all views; `view.py` is their form.
"""
