"""Commands: what each one does, and the type of its request. The command line parses, calls one of these, prints."""
