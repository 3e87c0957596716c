"""Every fusion in plain NumPy and float64, loop by loop, as the papers have it.

A reference takes the parameters of a module (nested dictionaries of arrays),
the layers H[0..L], [B, T, D] each, and the options of the side. References of
connections take the layers as functions instead, H[0] before them.
"""
