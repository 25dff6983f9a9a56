"""Recipes: ops, typed steps, the plan they are compiled to, and the sampler of their random parameters."""
