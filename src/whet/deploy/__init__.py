"""Deployment files of a variant, rendered from its engine's plan."""
