"""Quantized weights in the folders of Hugging Face: a file for each method, about the layout of its files."""
