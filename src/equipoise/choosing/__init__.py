"""From one limit to what can be deployed, and what a budget means: all on public data."""
