"""What the page Explore is put together from: what is asked above the viewer, and the panels below it."""
