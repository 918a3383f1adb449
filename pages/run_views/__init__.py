"""What is seen of runs: curves, attention over epochs, actions, results, several runs compared."""
