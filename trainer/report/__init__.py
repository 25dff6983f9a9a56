"""The report of a run: its content, its charts and its HTML page."""
