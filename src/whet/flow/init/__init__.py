"""``whet init``: a spec from a checkpoint, a request log and a device."""
