"""Check that translations do not depend on their batches."""
