"""The report of a run: what it shows, its charts, and the HTML page."""
