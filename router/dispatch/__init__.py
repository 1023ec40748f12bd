"""Who is admitted, where each request runs, and what is done when a worker is lost."""
