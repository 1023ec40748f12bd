"""Starting processes, watching them, and starting them again."""
