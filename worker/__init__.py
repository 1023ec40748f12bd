"""What both roles share: the process around an engine, its sessions with routers, its step loop."""
