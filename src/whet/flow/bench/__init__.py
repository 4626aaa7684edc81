"""Measure one server, or several against each other: whet bench."""
