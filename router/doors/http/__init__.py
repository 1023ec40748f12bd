"""The OpenAI-style HTTP door: another way into `Router.generate`, beside gRPC's."""
