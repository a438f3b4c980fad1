"""Published methods, beside poetc's own."""
