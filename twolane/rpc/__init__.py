"""What twolane's processes share of gRPC: options, links, and the translation of errors."""
