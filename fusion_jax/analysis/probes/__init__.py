"""Probes: classifiers of tokens on the layers of a frozen model."""
