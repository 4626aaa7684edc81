"""The main job's commands: run, check, decide and report."""
