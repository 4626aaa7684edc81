"""What ``whet deploy`` does: one bundle of files that serve and watch a run's variant."""
