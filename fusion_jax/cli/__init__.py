"""Command-line programs: their requests, text formats and files."""
