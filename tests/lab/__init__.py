"""The laboratory: training, faults and campaign scripts."""
