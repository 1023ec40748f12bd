"""The OpenAI-compatible HTTP door, a second interface to `Router.generate` beside gRPC."""
