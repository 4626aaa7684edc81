"""Quantize one checkpoint, serve it once, publish: whet quantize."""
