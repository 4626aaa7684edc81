"""The quality gate on servers that are up: whet quality."""
