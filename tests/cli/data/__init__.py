"""Training data and texts of the command line."""
