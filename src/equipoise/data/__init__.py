"""Load and normalise images; split them over clients."""
