"""The nouns that every stage shares: errors, units, the spec, records, the run directory."""
