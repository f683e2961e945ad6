"""Experiments: one small file per table or figure; each stores or prints records and computes nothing of its own."""
