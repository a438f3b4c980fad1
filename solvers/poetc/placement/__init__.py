"""State placement: which state lives in RAM and which on the store."""
