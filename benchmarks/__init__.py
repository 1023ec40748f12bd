"""Load generator, workloads, and benchmarks of the parts. Figures are saved in results/."""
