"""From a trained run to translations: search, batching, files."""
