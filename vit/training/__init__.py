"""Training: one attempt of a run, its loop, and what it leaves in the run's folder."""
