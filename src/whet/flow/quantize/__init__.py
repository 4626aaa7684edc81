"""Quantize one checkpoint, serve it once, compare schemes, publish: whet quantize."""
