"""A Flower app whose clients train under differential privacy: one guarantee for the whole run."""
