"""Admission, placement of requests on workers, and recovery when a worker is lost."""
