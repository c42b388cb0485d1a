"""What releases with a formal guarantee come to together."""
