"""Measurements over datasets, distributed over processes of this machine, or of a Ray or Slurm cluster."""
