"""``whet ci``: hold a run against a stored baseline run, and the files that do it in CI."""
