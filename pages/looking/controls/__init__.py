"""Controls of pages Explore and Compare: classes, examples and methods."""
