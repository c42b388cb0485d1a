"""Algorithm 1 for one federation or a whole sweep in one batch."""
