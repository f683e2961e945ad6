"""The study: its file, a first draft of it, the estimators and the preparation that follow from it."""
