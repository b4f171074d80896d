"""One file per paper; each ends with METHODS, a table from name to value."""
