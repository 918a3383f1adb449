"""Helpers that several pages share: escaping, buttons, uploaders, bar charts, datasets, trained models."""
