"""One package for each model, written once for every library in the way of its users."""
