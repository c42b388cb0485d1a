"""What a server does with releases: check, refuse by name, average."""
