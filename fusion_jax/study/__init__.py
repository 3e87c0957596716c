"""Studies: the same comparison of schemes, over seeds, from one file."""
