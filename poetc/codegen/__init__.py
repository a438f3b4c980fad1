"""See docs/DESIGN.md for what lives here."""
