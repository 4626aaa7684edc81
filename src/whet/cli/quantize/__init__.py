"""``whet quantize``: one checkpoint, or a comparison of schemes."""
