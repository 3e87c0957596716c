"""Command-line programs that work on trained runs and configs."""
