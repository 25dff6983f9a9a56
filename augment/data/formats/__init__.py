"""Container formats that images are kept in: how each is indexed, read and written; a format a module."""
