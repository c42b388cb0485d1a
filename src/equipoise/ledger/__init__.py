"""What was asked of every client and what came of it: a chain of hashes."""
