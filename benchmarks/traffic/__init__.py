"""The load of a run: lengths, arrivals, recorded workloads, and the plan made of them."""
