"""L-BFGS, its curvature, its line search."""
