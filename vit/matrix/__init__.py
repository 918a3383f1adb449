"""A number for every head of every block, as a grid of coloured buttons."""
