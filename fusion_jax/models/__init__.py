"""The Transformer; it knows nothing of any paper on fusion."""
