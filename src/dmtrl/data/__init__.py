"""Task data: rows sorted by task, blocks of them for workers, and sources that workers read themselves."""
