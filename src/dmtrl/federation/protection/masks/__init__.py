"""Numbers leave a site behind masks: only sums over all sites can be read."""
