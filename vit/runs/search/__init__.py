"""Random search with early end: settings drawn from ranges, and trials that fall behind end before their last epoch.

Every trial is an ordinary run in the ordinary queue. A search is a process and a folder, like a run:

    <runs>/.searches/<time>-<name>-<4 hex>/
        search.json    what is searched (`vit.runs.search.plan.SearchPlan`)
        study.jsonl    Optuna's journal: which trials began, what each reached after which epoch, how each ended
        alive.lock     held by the driver, `vit.runs.search.driver`
        stop           a request to the driver: present or not
        outcome.json   the last word of the driver: finished, stopped or failed, and why
        log.txt        what it printed

The runs of its trials name it as their `sweep`. What it draws is a function of its seed alone, and a run is named by
its trial before it is launched, so a driver that goes on after another one was killed begins no trial twice.
"""
