"""Training: schedule, step, loop, checkpoints, validation."""
