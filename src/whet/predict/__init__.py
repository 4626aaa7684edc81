"""Memory plans and feasibility, before anything starts."""
