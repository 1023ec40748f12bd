"""What both roles share: the process around an engine, its streams to routers, its step loop."""
