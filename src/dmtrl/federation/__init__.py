"""Studies between sites that may not exchange rows.

`study` reads the study file and `draft` writes a first one. `site` is everything that happens at a site, with its
`policy`, `approval`, `ledger` and `site_data`. `coordinate` is the coordinator's side, over any carrier; `preparation`
adds up the statistics of the sites. `simulate` runs a whole study in one process. `messages` declares what travels
before and after the rounds.
"""
