"""Beam search and sampling over any model that gives logits."""
