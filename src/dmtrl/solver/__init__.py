"""The coordinator's side of the algorithm: `solve`, settings, methods, checkpoints, cross-validation."""
