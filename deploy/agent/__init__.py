"""The agent: our process on each host, which starts, ends and proves dead what runs there."""
