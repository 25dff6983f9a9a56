"""The folder of a run: what a run writes, who may write, and the one reader."""
