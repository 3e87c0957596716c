"""Data pipeline from text to subword ids, examples and batches."""
