"""What several transports share."""
