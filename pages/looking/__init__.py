"""What pages show of models, pictures and runs: each opened once, which classes are asked about, what methods need."""
