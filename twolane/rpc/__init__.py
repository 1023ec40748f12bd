"""The gRPC code that all processes share: options, links, handlers, and the translation of
errors."""
