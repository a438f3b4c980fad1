"""`poetc estimate` and `compare`."""
