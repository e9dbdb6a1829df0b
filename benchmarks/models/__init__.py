"""One model a package, written once for every library as its users write it."""
