"""What several pages use and no other room is for: text that is escaped, buttons, uploaders, bars, datasets, names."""
