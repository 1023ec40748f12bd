"""The console: a page at /console that shows the cluster live, for browsers of operators."""
