"""A report on trained runs as one HTML page."""
