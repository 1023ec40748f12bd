"""What a run sends: lengths, arrivals, recorded workloads, and the plan made of them."""
