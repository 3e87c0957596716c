"""Devices: the mesh, how arrays are sharded on it, and several processes."""
