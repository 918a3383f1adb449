"""Search for settings: random ones drawn from ranges, whose trials end early if they fall behind, or every combination.

A search is a file, and its trials are ordinary runs that are queued at once and carry the search's id:

    <runs>/.searches/<time>-<name>-<4 hex>/search.json    settings (`vit.training.search.plan.SearchPlan`)

No process drives it. A trial ends itself when it is behind the others (`vit.training.loop.trial_pruning`). Random
settings depend on the seed alone, so more trials can be queued later.
"""
