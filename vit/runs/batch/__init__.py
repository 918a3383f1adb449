"""Measurements over datasets, spread over processes: of this machine, of a Ray or of a Slurm cluster."""
