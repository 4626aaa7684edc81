"""Charts, declared with Altair and drawn as static SVG."""
