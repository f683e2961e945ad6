"""The paper's experiments, one file per table or figure, and the machinery that runs and records them."""
