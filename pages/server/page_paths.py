"""The app's pages: how their files are named, and their paths in addresses."""

NAMES = ("explore", "compare", "checkpoints", "train", "runs")  # of their files
PATHS = ("", *NAMES[1:])  # in addresses
