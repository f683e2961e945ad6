"""Studies between sites that may not exchange rows.

`study/` is the study file and what follows from it, `coordinator/` runs a study over any carrier, `site/` is everything
that happens at a site, `protection/` decides in which form numbers leave a site, and `flare/` connects them over a
network. `simulate.py` runs a whole study in one process. `protocol/study.py` declares what travels.
"""
