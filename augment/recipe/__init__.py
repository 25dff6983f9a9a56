"""Recipes without DALI: the op registry, parsed steps, the plan with its fused stages, and the sampler."""
