"""Run folders: written, resumed, read."""
