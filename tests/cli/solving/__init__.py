"""`poetc analyze`, `solve` and what comes of a plan."""
