"""What the programs do with their flags: requests, text formats, files."""
