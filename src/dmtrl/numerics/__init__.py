"""Numerical helpers that know nothing of tasks."""
