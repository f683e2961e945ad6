"""Benchmarks, experiments, baselines, theory and the demo: built on the library, imported only by the shell."""
