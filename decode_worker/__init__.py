"""The decode role: reservations, joining rows, growth, preemption: continuous batching."""
