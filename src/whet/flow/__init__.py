"""What each command does, in order: one folder a command, `run/pipeline.py` first."""
