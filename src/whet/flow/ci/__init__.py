"""``whet ci``: hold a run against a stored baseline run, and the files that do it in CI."""

import whet.levers  # noqa: F401  levers add their keys to whet.yaml
