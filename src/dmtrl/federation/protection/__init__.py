"""In which form numbers leave a site: in plain form, with noise, or behind masks that cancel in a sum."""
