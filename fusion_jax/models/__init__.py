"""The Transformer and its loss, independent of any paper on fusion."""
