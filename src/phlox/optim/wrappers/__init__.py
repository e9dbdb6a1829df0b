"""Helpers around an optimizer's steps: averages of weights, accumulation of gradients, loss scaling."""
