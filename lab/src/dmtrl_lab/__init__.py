"""Benchmarks, the paper's experiments, baselines and theory. This package imports dmtrl; dmtrl never imports it."""
