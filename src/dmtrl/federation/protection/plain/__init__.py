"""Numbers leave a site as they are."""
