"""``whet calibrate``: the coefficients of this machine, for ``whet plan``."""
