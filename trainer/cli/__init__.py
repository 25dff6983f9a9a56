"""The command line of `python -m trainer`: help, completion, jobs and ranks."""
