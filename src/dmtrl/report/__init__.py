"""Reports: tables, plots as files, and offline HTML pages."""
