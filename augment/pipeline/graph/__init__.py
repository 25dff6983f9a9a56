"""The DALI pipeline: what it reads, in which order, where it decodes, and the operators of each stage."""
