"""Benchmarks, one file per question. Each measures all competitors in one run, interleaved, without compile time."""
