"""Tensor parallelism: one model on several devices, each a rank with a process of its own.

    worker process                       rank 0            rank 1            ...
    RankGroup.submit -- one message -->  engine            engine
                                           |  sums, logits   |               Collective
    step.result  <-- results ------------- '                 |
                 <-- digest ---------------------------------'

The group implements `engine.step.Engine`: what drives it need not know that it is one. Every rank
is told the same step, works out the same plan and samples the same tokens, since all of them see
the same logits and draws are keyed by (seed, sample, position).

A request's pages are spread like this: page p of the group is page p of every rank's pool, and
holds there that rank's key-value heads, laid out as in any pool. So one allocator serves all ranks;
a page is moved by moving it rank by rank (their layouts say how many there are: see
`engine.layout`; which heads go where between unequal numbers of them: `kvtransfer.planes`).
"""
