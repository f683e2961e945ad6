"""Numbers leave a site with noise that gives a differential privacy guarantee."""
