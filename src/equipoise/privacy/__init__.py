"""What several releases with a formal guarantee are worth together."""
