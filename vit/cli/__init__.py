"""The command line: what it understands, and what each command does."""
