"""``whet watch``: what it compares with, its loop, and the run that it proposes."""

import whet.levers  # noqa: F401  levers add their keys to whet.yaml
