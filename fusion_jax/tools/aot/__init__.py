"""Compilation of training and decoding for absent accelerators."""
