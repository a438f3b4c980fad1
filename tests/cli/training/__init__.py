"""`poetc train`."""
