"""`python -m augment bench`: the speed of a recipe next to upper bounds."""
