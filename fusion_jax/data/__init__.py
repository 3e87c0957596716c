"""Text to subword ids to examples to batches of fixed shapes."""
