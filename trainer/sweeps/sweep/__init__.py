"""The tool that resumes, retries and shows sweeps."""
