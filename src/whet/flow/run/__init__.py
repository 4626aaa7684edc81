"""The main job, whet run: preflight, quantize, measure, decide."""
