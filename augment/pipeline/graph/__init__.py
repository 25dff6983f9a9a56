"""The DALI pipeline: the order of samples, the decoder, and the operators of each stage."""
