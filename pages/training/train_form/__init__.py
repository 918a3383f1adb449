"""The form of page Train: data, settings, compute target, expected cost."""
