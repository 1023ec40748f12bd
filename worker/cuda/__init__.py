"""A GPU's pool as kvtransfer sees it: memory, copies, and pages in other layouts."""
