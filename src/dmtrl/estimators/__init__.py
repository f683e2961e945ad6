"""Estimators with scikit-learn's conventions, and what they need: inputs, model files, diagnostics, metrics."""
