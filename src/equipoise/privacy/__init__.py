"""What several releases with a formal guarantee are worth together."""

CANDIDATES = 200
"""Equally likely ones, among which an attacker looks for the right one where nobody says how many there are."""
