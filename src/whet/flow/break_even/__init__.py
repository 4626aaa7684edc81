"""Up to which load speculation pays: whet break-even."""
