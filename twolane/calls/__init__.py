"""The client's side of a request: multiplexed, and resumed at another router if one is lost."""
