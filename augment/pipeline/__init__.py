"""From a plan to batches: the DALI graph, the GPU kernels, the loader and the transform."""
