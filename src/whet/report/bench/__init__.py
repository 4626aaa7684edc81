"""What ``whet bench`` prints, draws and saves."""
