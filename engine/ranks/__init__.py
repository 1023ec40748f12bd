"""Tensor parallelism: one model on several devices, each a rank with its own process.

    worker process                       rank 0            rank 1            ...
    RankGroup.submit -- one message -->  engine            engine
                                           | all-reduce, ... |               Collective
    step.result  <-- results ------------- '                 |
                 <-- digest ---------------------------------'

The group implements `twolane.engine.step.Engine`, so its caller need not know that it is a group.
Every rank gets the same step, computes the same plan and samples the same tokens, since all of them
see the same logits and draws are keyed by (seed, sample, position).

Pages are split over ranks: page p of the group is page p of every rank's pool, and holds that
rank's KV heads there, laid out as in any pool. So one allocator serves all ranks. Pages are
transferred from the group's process, which has the memory of all ranks mapped; for it a page is the
concatenation of the ranks' pages (`twolane.layout`; for the mapping of heads between unequal
numbers of ranks see `twolane.kvtransfer.layouts.gather`). A step is complete when every rank has
reported that its own part is complete on its device: so a result proves what all ranks wrote.
"""
