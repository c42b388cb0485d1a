"""What could the server see? Attacks on releases whose truth is known, scored."""
