"""Commands where operands stream from the store."""
