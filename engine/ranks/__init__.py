"""Tensor parallelism: one model on several devices, each a rank with a process of its own.

    worker process                       rank 0            rank 1            ...
    RankGroup.submit -- one message -->  engine            engine
                                           |  sums, logits   |               Collective
    step.result  <-- results ------------- '                 |
                 <-- digest ---------------------------------'

The group implements `twolane.engine.step.Engine`: what drives it need not know that it is one.
Every rank is told the same step, works out the same plan and samples the same tokens, since all of
them see the same logits and draws are keyed by (seed, sample, position).

A request's pages are spread like this: page p of the group is page p of every rank's pool, and
holds there that rank's key-value heads, laid out as in any pool. So one allocator serves all ranks.
Whoever moves pages does it from the group's process, which has the memory of all ranks mapped, and
for which a page is the ranks' pages one behind the other (`twolane.layout`; which heads go where
between unequal numbers of ranks: `twolane.kvtransfer.layouts.gather`). A step is over when every
rank has said that its own share is, on its device: so a result proves what all ranks wrote.
"""
