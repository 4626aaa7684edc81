"""The main job, whet run: preflight, quantize, measure, decide."""

import whet.levers  # noqa: F401  levers add their keys to whet.yaml
