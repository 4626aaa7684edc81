"""``whet calibrate``: the coefficients of this machine, for ``whet plan``."""

from whet.flow.calibrate.calibrate import calibrate
from whet.flow.calibrate.options import CalibrateOptions

__all__ = ["CalibrateOptions", "calibrate"]
