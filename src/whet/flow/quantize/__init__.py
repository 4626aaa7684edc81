"""One checkpoint quantized outside of a run: whet quantize."""
