"""Request logs → token radix tree → the best hit rate, what is lost and why, proposals, lint."""
