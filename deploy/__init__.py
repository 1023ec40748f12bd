"""All that knows Ray and processes: launching, supervising, and composing roles into workers."""
