"""Benchmarks: one file per question; each measures all contenders in one run, interleaved, compile time excluded.

Room: beside experiments, whose records, runner and collection it uses.
"""
