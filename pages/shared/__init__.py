"""What several pages use: who may do what, links and their controls, results that are remembered, uploads."""
