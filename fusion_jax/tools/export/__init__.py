"""Runs in the formats of other programs."""
