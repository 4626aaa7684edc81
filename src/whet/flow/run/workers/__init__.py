"""``--executor ray``: visits made by workers on the devices of a Ray cluster.

The driver (``pool``) alone writes the run directory. A worker is an actor (``actor``) with a child
process (``process``) in which a visit runs just as it does on the driver's machine, over a store
that sends home what is stored (``mirror``). ``messages`` is what they say to each other.
"""
