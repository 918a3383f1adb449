"""File names and URL paths of the app's pages."""

NAMES = ("explore", "compare", "checkpoints", "train", "runs")  # file names without suffix
PATHS = ("", *NAMES[1:])  # URL paths
