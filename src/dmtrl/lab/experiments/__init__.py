"""Experiments: one small file per table or figure; each lists its runs, measures one, and turns records into a section.

Room: above everything but the shell. `reproduce` runs them; `records` is where results are kept.
"""
