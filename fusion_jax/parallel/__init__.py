"""Devices: the mesh and how arrays lie on it."""
