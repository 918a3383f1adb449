"""The lesson: one HTML file with a small model, its forward pass in JavaScript, the viewer, and exercises."""
