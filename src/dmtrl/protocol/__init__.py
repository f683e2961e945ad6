"""Every message between a coordinator and workers or sites, and the one codec."""

# Sites and coordinator of a study must have the same number. It grows by one when a message changes: a field, its
# meaning, or which requests a site answers. The version of the package does not matter.
PROTOCOL = 1
