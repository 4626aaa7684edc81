"""``whet watch``: what it compares with, its loop, and the run that it proposes."""
