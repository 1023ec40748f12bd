"""Which bytes of a sender's pages are which of a receiver's, where the two are laid out
differently."""
