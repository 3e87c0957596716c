"""Decoding with trained runs: search, batching, scoring and views."""
