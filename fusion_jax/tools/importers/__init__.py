"""Reading of models that other programs trained, as run directories."""
