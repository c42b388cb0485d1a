"""A Flower app whose clients distort their updates under a privacy budget."""
