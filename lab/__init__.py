"""What made the demo pair, faults to plant, and a driver for GPU hosts; not in the wheel."""
