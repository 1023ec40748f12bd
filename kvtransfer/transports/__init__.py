"""How page bytes move. `base` is the interface; every other module is one way to do it."""
