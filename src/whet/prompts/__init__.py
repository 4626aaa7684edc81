"""Request logs: what a prefix cache can find in their prompts, what prevents it, and lint."""
