"""`python -m benchmarks gpu`: what a machine with one NVIDIA GPU shows of Phlox in eight minutes."""
