"""Conversion of a data set into another format."""
