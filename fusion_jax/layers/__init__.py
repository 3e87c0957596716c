"""Modules of a Transformer that do not depend on the fusion schemes."""
