"""Commands: the job of each one, and the type of its request. The command line parses, calls one of these, prints."""
