"""Benchmarks, experiments, baselines, theory and the demo. Only the command line imports this folder."""
