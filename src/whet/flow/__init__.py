"""The whole story, from a spec to a decision; ``story.py`` tells it in one screen."""
