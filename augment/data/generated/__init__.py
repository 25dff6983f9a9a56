"""Small datasets that the project generates, for `data=sample*` and the tests."""
