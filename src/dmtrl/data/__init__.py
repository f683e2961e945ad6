"""Rows sorted by task, blocks of rows for workers, and sources that workers read themselves."""
