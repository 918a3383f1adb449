"""Search for settings: random ones drawn from ranges, whose trials end early if they fall behind, or every combination.

Every trial is an ordinary run in the ordinary queue. A search is a process and a folder, like a run:

    <runs>/.searches/<time>-<name>-<4 hex>/
        search.json    the search's settings (`vit.training.search.plan.SearchPlan`)
        study.jsonl    Optuna's journal: trials, their intermediate values per epoch, and how each ended
        alive.lock     held by the driver, `vit.training.search.driver`
        stop           exists if the driver is asked to stop
        outcome.json   the driver's outcome: finished, stopped or failed, and why
        log.txt        the driver's output

The runs of its trials carry its id as their `search`. Random settings depend on the seed alone, and each run gets a
nonce before launch, so a restarted driver starts no trial twice.
"""
