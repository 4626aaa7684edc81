"""From a 16-bit checkpoint to one with fewer bits, written the way vLLM reads it."""

from whet.quant.calibration import Calibration, Judge, load_calibration
from whet.quant.run import quantize, quantize_many

__all__ = ["Calibration", "Judge", "load_calibration", "quantize", "quantize_many"]
