"""Two maps side by side, and many pictures at once."""
