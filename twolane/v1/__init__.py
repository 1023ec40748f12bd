"""The wire contract: stubs generated from proto/twolane/v1 by `make proto`. Never edited by hand."""
