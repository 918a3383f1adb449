"""The form of the page Train: data, settings, what a run will cost."""
