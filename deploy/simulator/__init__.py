"""Simulates a day of an autoscaled cluster in seconds, and plans clusters from traces.

requests ──▶ prefill pool ──▶ decode pool ──▶ held or missed
                  ▲                ▲
                  └── decide ◀─────┘ signals, each 2 s        the law of deploy/controller
"""
