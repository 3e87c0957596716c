"""Programs around trained runs."""
