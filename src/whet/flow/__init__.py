"""What each command does, in order: one folder a command, `run/pipeline.py` first."""

import whet.levers  # noqa: F401  levers add their keys to whet.yaml
