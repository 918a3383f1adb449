"""Pages Train and Runs: forms, views, and what they share."""
