"""Equipoise."""
