"""``whet prompts``: analyse a request log, and lint prompts before they ship."""
