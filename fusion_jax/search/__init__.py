"""Beam search and sampling over any model that computes logits."""
