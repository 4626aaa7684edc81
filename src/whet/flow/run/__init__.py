"""The main job, whet run: check, search, measure, conclude."""

import whet.levers  # noqa: F401  levers add their keys to whet.yaml
