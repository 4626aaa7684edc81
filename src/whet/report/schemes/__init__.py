"""The report of ``whet quantize --compare``: one table of several schemes."""
