"""Which budget still trains, found on public data."""
