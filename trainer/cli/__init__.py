"""The command line of `python -m trainer`: help, jobs and ranks."""
