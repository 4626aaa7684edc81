"""whet: from a 16-bit checkpoint and an objective to a cheaper serving configuration."""

__version__ = "0.1.0"
