"""The report of ``whet break-even``: from which acceptance length on speculation pays."""
