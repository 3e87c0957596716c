"""One page that tells of trained runs."""
