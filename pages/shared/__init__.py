"""Helpers that several pages share: escaping, buttons, uploaders, bar charts, datasets, names of settings."""
