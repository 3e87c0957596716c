"""Compile training and decoding for accelerators that are not here."""
