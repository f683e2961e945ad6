"""The coordinator's side of a study, over any carrier: it asks the sites, fits, and writes the results."""
