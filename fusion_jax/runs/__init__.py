"""The run directory: its files, its checkpoints, and how they are read."""
