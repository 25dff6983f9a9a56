"""Image augmentation in NVIDIA DALI, declared in YAML and fused into one warp and one color matrix."""
