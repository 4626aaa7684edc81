"""``--executor ray``: server sessions as tasks on the devices of a Ray cluster.

A session (``session``) runs in a temporary run directory and returns what it wrote there; the
driver (``executor``) alone writes the run.
"""
