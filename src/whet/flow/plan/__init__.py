"""``whet plan``: which GPUs and configurations meet an objective, predicted without a GPU."""
