"""Pages Explore and Compare: loading of models and pictures, panels, comparison, and controls."""
