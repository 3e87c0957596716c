"""Training of a model: schedules, optimizer, step, loop and validation."""
