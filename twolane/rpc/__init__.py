"""The gRPC code that all processes share: options, links, and the translation of errors."""
