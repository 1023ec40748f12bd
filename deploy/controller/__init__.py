"""Decides how many workers each pool has and where they are.

    load reports ──▶ Observation ──▶ `decide` ──▶ [Action] ──▶ what is desired ──▶ what to start,
                        │ forecast, capacity │ pure               (`desired`)       drain and end
                        ▼                    ▼                                     (`reconcile`)
                     history             sentences (`explain`)

The modules here know no clock, no network and no launcher: the supervisor acts.
"""
