"""Pages for people, made from records; imported by the command line alone."""
