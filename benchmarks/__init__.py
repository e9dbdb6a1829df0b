"""Benchmarks: ratios measured interleaved in one run, since absolute times on a shared machine mean little."""
