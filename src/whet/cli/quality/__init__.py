"""``whet quality``: the command and its output."""
