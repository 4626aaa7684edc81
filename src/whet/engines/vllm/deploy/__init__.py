"""Deployment files for vLLM."""
