"""What made the demo pair, faults to plant, and campaign scripts; not in the wheel."""
