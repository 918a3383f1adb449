"""A device that behaves like a GPU, and checks that run on it."""
